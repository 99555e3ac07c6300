//! Classification of any error, with the chain of its sources, as a memory failure or not.

use std::collections::TryReserveError;
use std::error::Error;
use std::io;

use burn::tensor::ExecutionError;

use super::failure::Failure;
use super::kind::Kind;
use super::messages;

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
