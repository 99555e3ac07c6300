//! Memory failures: their kinds, and their classification from errors, panics and messages.

use std::any::Any;
use std::collections::TryReserveError;
use std::error::Error;
use std::{fmt, io};

use burn::tensor::ExecutionError;
use serde::{Deserialize, Serialize};

use super::messages::{self, Kind};

/// A memory failure of a device, or the loss of the device.
///
/// Made from an error ([`classify`](crate::classify)), from burn's error ([`Failure::from_device`]), from a panic
/// ([`Failure::from_panic`]), or from a message ([`Failure::from_text`]).
///
/// A failed allocation on the plain Rust heap (`Vec`, `Box`, every tensor of the Flex device) **never** becomes a `Failure`: it
/// aborts the process, which cannot be caught. Keep such a device within a budget that is counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    kind: Kind,
    consequence: bool,
    bytes: Option<u64>,
    message: String,
}

impl Failure {
    /// A failure that no device reported, for a budget that is counted or for a test.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, consequence: false, bytes: None, message: message.into() }
    }

    /// Sets the number of requested bytes, and adds it to the message.
    #[must_use]
    pub fn with_bytes(self, bytes: u64) -> Self {
        let message = format!("{} (tried to allocate {bytes} bytes)", self.message);
        Self { bytes: Some(bytes), message, ..self }
    }

    /// Puts `place`, where the failure happened, in front of the message.
    #[must_use]
    pub fn at(self, place: impl fmt::Display) -> Self {
        Self { message: format!("{place}: {}", self.message), ..self }
    }

    /// Classifies a message. `None` if it names no memory failure.
    ///
    /// The stored message has no backtrace. All patterns are in one table, with the messages that they were made for.
    pub fn from_text(text: &str) -> Option<Self> {
        messages::read(text).map(|(kind, consequence)| Self {
            kind,
            consequence,
            bytes: messages::bytes(text),
            message: messages::without_head(&messages::clean(text)).to_owned(),
        })
    }

    /// Classifies burn's error of an operation or a read. A poisoned device is known by type, the other causes by their text.
    pub fn from_device(error: &ExecutionError) -> Option<Self> {
        match error.is_device_poisoned() {
            true => Some(Self::new(Kind::DeviceLost, messages::clean(error.reason()))),
            false => Self::from_text(error.reason()),
        }
    }

    /// Classifies the payload that `catch_unwind` returned. The payload stays unchanged, so that
    /// `std::panic::resume_unwind` can continue with it when the result is `None`.
    pub fn from_panic(payload: &(dyn Any + Send)) -> Option<Self> {
        if let Some(boxed) = payload.downcast_ref::<Box<dyn Any + Send>>() {
            return Self::from_panic(boxed.as_ref());
        }
        if let Some(text) = payload.downcast_ref::<&'static str>() {
            return Self::from_text(text);
        }
        if let Some(text) = payload.downcast_ref::<String>() {
            return Self::from_text(text);
        }
        if let Some(error) = payload.downcast_ref::<ExecutionError>() {
            return Self::from_device(error);
        }
        payload.downcast_ref::<Self>().cloned()
    }

    /// The kind of the failure.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether another attempt can succeed. False for a lost device.
    pub fn is_recoverable(&self) -> bool {
        self.kind != Kind::DeviceLost
    }

    /// Whether the message only says that a tensor was not written. Most of the time the cause is a failed allocation
    /// elsewhere.
    pub fn is_consequence(&self) -> bool {
        self.consequence
    }

    /// The bytes of the failed allocation, if the message names them.
    pub fn bytes(&self) -> Option<u64> {
        self.bytes
    }

    /// The message in one line, without backtraces.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// A rank: of several failures of one attempt, the highest is kept.
    pub(crate) fn specificity(&self) -> u8 {
        match (self.kind, self.consequence) {
            (_, true) => 0,
            (Kind::OutOfMemory, _) => 1,
            (Kind::TooBig, _) => 2,
            (Kind::DeviceLost, _) => 3,
        }
    }

    /// Whether `this` is more specific than `other`. `None` is an error that is no memory failure; it ranks above a
    /// consequence and below a named memory failure.
    pub(crate) fn outranks(this: Option<&Self>, other: Option<&Self>) -> bool {
        let rank = |failure: Option<&Self>| failure.map_or(1, |failure| 2 * failure.specificity());
        rank(this) > rank(other)
    }
}

impl fmt::Display for Failure {
    /// A message from which [`Failure::from_text`] reads the same kind again, also after a conversion to a text error.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = match (self.kind, self.consequence) {
            (_, true) => messages::UNWRITTEN,
            (Kind::OutOfMemory, _) => messages::OUT_OF_MEMORY,
            (Kind::TooBig, _) => messages::TOO_BIG,
            (Kind::DeviceLost, _) => messages::DEVICE_LOST,
        };
        write!(f, "{head}: {}", self.message)
    }
}

impl Error for Failure {}

/// Classifies an error with the chain of its sources. `None` if it is not a memory failure.
///
/// A [`Failure`], burn's `ExecutionError`, an `io::Error` of the kind `OutOfMemory` and a `TryReserveError` are known by
/// type anywhere in the chain. Every other error is classified by its text. Of several failures the most severe is returned.
///
/// ```
/// use kiln_recovery::{Kind, classify};
///
/// let error = std::io::Error::other("DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")");
/// assert_eq!(classify(&error).map(|failure| failure.kind()), Some(Kind::OutOfMemory));
/// assert_eq!(classify(&std::io::Error::other("index out of bounds")), None);
/// ```
pub fn classify(error: &(dyn Error + 'static)) -> Option<Failure> {
    let mut found: Option<Failure> = None;
    let mut next = Some(error);
    while let Some(error) = next {
        // Of two equally specific failures, the source is kept: the error around it often only repeats it.
        if let Some(failure) = classify_one(error)
            && found.as_ref().is_none_or(|found| failure.specificity() >= found.specificity())
        {
            found = Some(failure);
        }
        next = error.source();
    }
    found
}

fn classify_one(error: &(dyn Error + 'static)) -> Option<Failure> {
    if let Some(failure) = error.downcast_ref::<Failure>() {
        return Some(failure.clone());
    }
    if let Some(error) = error.downcast_ref::<ExecutionError>() {
        return Failure::from_device(error);
    }
    let of_the_host = error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::OutOfMemory);
    if of_the_host || error.is::<TryReserveError>() {
        return Some(Failure::new(Kind::OutOfMemory, messages::clean(&error.to_string())));
    }
    Failure::from_text(&error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{catch_unwind, panic_any};

    #[test]
    fn every_kind_reads_back_from_its_own_message() {
        for kind in [Kind::OutOfMemory, Kind::TooBig, Kind::DeviceLost] {
            let failure = Failure::new(kind, "the budget of 300 MiB").with_bytes(64);
            assert_eq!(Failure::from_text(&failure.to_string()).as_ref(), Some(&failure));
        }
        let there = Failure::new(Kind::TooBig, "none left").with_bytes(64).at("on replica 1");
        assert_eq!((there.kind(), there.bytes()), (Kind::TooBig, Some(64)));
        assert!(there.message().starts_with("on replica 1: none left"), "{there}");
        let sibling = Failure::from_text("Memory location was never initialized").unwrap();
        let again = Failure::from_text(&sibling.to_string()).unwrap();
        assert!(sibling.is_consequence());
        assert_eq!((sibling.kind(), again), (Kind::OutOfMemory, sibling.clone()));
    }

    #[test]
    fn a_poisoned_device_is_known_by_its_type_whatever_it_says() {
        let error = ExecutionError::device_poisoned("cuStreamSynchronize: status 700");
        assert_eq!(Failure::from_device(&error).unwrap().kind(), Kind::DeviceLost);
        let error = ExecutionError::device_poisoned("out of device memory allocating 64 bytes");
        assert_eq!(Failure::from_device(&error).unwrap().kind(), Kind::DeviceLost);
        assert_eq!(Failure::from_device(&ExecutionError::with_context("cuStreamSynchronize: status 1")), None);
    }

    #[test]
    fn a_panic_is_classified_and_its_payload_unchanged() {
        let payload = catch_unwind(|| panic!("out of device memory allocating {} bytes", 7)).unwrap_err();
        assert_eq!(Failure::from_panic(payload.as_ref()).unwrap().bytes(), Some(7));
        // A box in a box, where a dereference was forgotten, works too.
        assert!(Failure::from_panic(&payload).is_some());
        let payload = catch_unwind(|| panic_any("no row 7".to_owned())).unwrap_err();
        assert_eq!(Failure::from_panic(payload.as_ref()), None);
        assert_eq!(*payload.downcast::<String>().unwrap(), "no row 7");
        let payload = catch_unwind(|| panic_any(Failure::new(Kind::TooBig, "1 GiB"))).unwrap_err();
        assert_eq!(Failure::from_panic(payload.as_ref()).unwrap().kind(), Kind::TooBig);
        let payload = catch_unwind(|| panic_any(41_u8)).unwrap_err();
        assert_eq!(Failure::from_panic(payload.as_ref()), None);
    }

    #[test]
    fn the_gravest_of_a_chain_is_kept() {
        #[derive(Debug, thiserror::Error)]
        #[error("Memory location was never initialized")]
        struct Outer(#[source] ExecutionError);
        let outer = Outer(ExecutionError::with_context("out of device memory allocating 4096 bytes"));
        let failure = classify(&outer).unwrap();
        assert_eq!((failure.is_consequence(), failure.bytes()), (false, Some(4096)));
        let outer = Outer(ExecutionError::device_poisoned("gone"));
        assert_eq!(classify(&outer).unwrap().kind(), Kind::DeviceLost);
        let outer = Outer(ExecutionError::with_context("the work writing it failed: no reason given"));
        assert_eq!(classify(&outer).unwrap().message(), "the work writing it failed: no reason given");
    }

    #[test]
    fn errors_of_the_host_are_known_by_their_types() {
        let error = io::Error::from(io::ErrorKind::OutOfMemory);
        assert_eq!(classify(&error).unwrap().kind(), Kind::OutOfMemory);
        assert_eq!(classify(&io::Error::from(io::ErrorKind::StorageFull)), None);
        let error = Vec::<u8>::new().try_reserve(usize::MAX / 2).unwrap_err();
        assert_eq!(classify(&error).unwrap().kind(), Kind::OutOfMemory);
    }
}
