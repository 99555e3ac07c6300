use std::any::Any;
use std::collections::TryReserveError;
use std::error::Error;
use std::fmt;
use std::io;

use burn::tensor::ExecutionError;
use serde::{Deserialize, Serialize};

use crate::text;

/// What kind of memory fault it was, and so what can be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Kind {
    /// There was no memory left at that moment: reclaim, or use less of it.
    OutOfMemory,
    /// One buffer is larger than the device ever hands out: reclaiming is pointless, a smaller micro-batch helps.
    TooBig,
    /// The device is lost or poisoned: everything on it fails until the process ends. Never retried.
    DeviceLost,
}

/// A memory fault of a device, or the loss of it. A fault of another kind is never one of these.
///
/// Made from what the failing code gave: an error ([`classify`]), burn's own ([`Failure::from_device`]), a panic
/// ([`Failure::from_panic`]), or a message ([`Failure::from_text`]).
///
/// A failed allocation on the plain Rust heap (`Vec`, `Box`, and every tensor of the Flex device) is **not** among
/// them: it aborts the process, and nothing in a process can catch that. Keep such a device inside of a budget that is
/// counted instead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    kind: Kind,
    consequence: bool,
    bytes: Option<u64>,
    message: String,
}

impl Failure {
    /// A failure of one's own: a budget that is counted rather than enforced by a device, or a test.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, consequence: false, bytes: None, message: message.into() }
    }

    /// The same failure, with the bytes that were asked for.
    #[must_use]
    pub fn with_bytes(self, bytes: u64) -> Self {
        let message = format!("{} (tried to allocate {bytes} bytes)", self.message);
        Self { bytes: Some(bytes), message, ..self }
    }

    /// Reads a message. `None` when it names no memory fault.
    ///
    /// Backtraces are taken out of the message that is kept. Every pattern and the messages that it was made for are in
    /// one table.
    pub fn from_text(text: &str) -> Option<Self> {
        text::read(text).map(|(kind, consequence)| Self {
            kind,
            consequence,
            bytes: text::bytes(text),
            message: text::without_head(&text::clean(text)).to_owned(),
        })
    }

    /// Reads burn's error of an operation or a read. A poisoned device is known by its type; the other causes reach burn
    /// as text.
    pub fn from_device(error: &ExecutionError) -> Option<Self> {
        match error.is_device_poisoned() {
            true => Some(Self::new(Kind::DeviceLost, text::clean(error.reason()))),
            false => Self::from_text(error.reason()),
        }
    }

    /// Reads the payload that `catch_unwind` returned, by its message. The payload is only looked at: when this is
    /// `None` it can go on as it was, with `std::panic::resume_unwind`.
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

    /// What kind of fault it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether another try can succeed at all: not on a lost device.
    pub fn is_recoverable(&self) -> bool {
        self.kind != Kind::DeviceLost
    }

    /// Whether the message only says that something was not written. That follows from a failed allocation elsewhere,
    /// most of the time: a suspicion, not a statement.
    pub fn is_consequence(&self) -> bool {
        self.consequence
    }

    /// The bytes of the allocation that failed, when the message tells.
    pub fn bytes(&self) -> Option<u64> {
        self.bytes
    }

    /// What was said, without backtraces, in one line.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// How much it tells: of several reports of one attempt, the highest is kept.
    fn telling(&self) -> u8 {
        match (self.kind, self.consequence) {
            (_, true) => 0,
            (Kind::OutOfMemory, _) => 1,
            (Kind::TooBig, _) => 2,
            (Kind::DeviceLost, _) => 3,
        }
    }

    /// Whether `self` tells more than `other`, where `None` is an error that is no memory fault: it says more than a
    /// consequence, and less than a memory fault by name.
    pub(crate) fn outranks(this: Option<&Self>, other: Option<&Self>) -> bool {
        let rank = |failure: Option<&Self>| failure.map_or(1, |failure| 2 * failure.telling());
        rank(this) > rank(other)
    }
}

impl fmt::Display for Failure {
    /// A message that reads back as the same kind of failure, also after it went through an error type of text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = match (self.kind, self.consequence) {
            (_, true) => text::UNWRITTEN,
            (Kind::OutOfMemory, _) => text::OUT_OF_MEMORY,
            (Kind::TooBig, _) => text::TOO_BIG,
            (Kind::DeviceLost, _) => text::DEVICE_LOST,
        };
        write!(f, "{head}: {}", self.message)
    }
}

impl Error for Failure {}

/// Reads an error and everything it says it was caused by. `None` when it is no memory fault: hand it on as it is.
///
/// A [`Failure`], burn's `ExecutionError`, an `io::Error` of the kind `OutOfMemory` and a `TryReserveError` are known by
/// their types wherever they are in the chain; everything else is read as text. Of several, the gravest is returned.
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
        // Of two that are as grave, the cause: the error around it often only repeats it.
        if let Some(failure) = classify_one(error)
            && found.as_ref().is_none_or(|found| failure.telling() >= found.telling())
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
        return Some(Failure::new(Kind::OutOfMemory, text::clean(&error.to_string())));
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

    #[test]
    fn a_panic_is_read_and_left_as_it_was() {
        let payload = catch_unwind(|| panic!("out of device memory allocating {} bytes", 7)).unwrap_err();
        assert_eq!(Failure::from_panic(payload.as_ref()).unwrap().bytes(), Some(7));
        // The box itself, where a dereference was forgotten, is looked into.
        assert!(Failure::from_panic(&payload).is_some());
        let payload = catch_unwind(|| panic_any("no row 7".to_owned())).unwrap_err();
        assert_eq!(Failure::from_panic(payload.as_ref()), None);
        assert_eq!(*payload.downcast::<String>().unwrap(), "no row 7");
        let payload = catch_unwind(|| panic_any(Failure::new(Kind::TooBig, "1 GiB"))).unwrap_err();
        assert_eq!(Failure::from_panic(payload.as_ref()).unwrap().kind(), Kind::TooBig);
        let payload = catch_unwind(|| panic_any(41_u8)).unwrap_err();
        assert_eq!(Failure::from_panic(payload.as_ref()), None);
    }
}
