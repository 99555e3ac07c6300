//! Tells other replicas that one of them has ended.

use std::any::Any;
use std::error::Error as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use kiln_parallel::Communicator;

use crate::error::Error;

/// Runs `work` of a replica. If it ends with an error or a panic, the other replicas are told, because they would otherwise wait for this
/// one. They still wait for a replica whose update is unfinished, because its caller can complete the update.
///
/// # Errors
/// Those of `work`.
///
/// # Panics
/// When `work` panics.
pub(crate) fn telling<T>(
    communicator: Option<&dyn Communicator>,
    work: impl FnOnce() -> Result<T, Error>,
) -> Result<T, Error> {
    let Some(communicator) = communicator else { return work() };
    let outcome = catch_unwind(AssertUnwindSafe(work));
    match &outcome {
        Ok(Ok(_) | Err(Error::Unfinished { .. })) => {}
        Ok(Err(error)) => communicator.leave(&chain(error)),
        Err(payload) => communicator.leave(&panicked(payload.as_ref())),
    }
    outcome.unwrap_or_else(|payload| resume_unwind(payload))
}

/// An error with its sources, in one line.
pub(super) fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let source_text = source.to_string();
        // Some errors quote their source.
        if !text.contains(&source_text) {
            text = format!("{text}: {source_text}");
        }
        next = source.source();
    }
    text
}

/// The message of a panic.
pub(super) fn panicked(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    format!("it panicked: {}", text.unwrap_or("without a message"))
}

/// Puts an error of the group into `aside` and returns one that quotes nothing. Any other error is returned as it is.
///
/// An attempt that ends with an error of the group must not be tried again, although its text may quote another replica's lack of memory.
pub(crate) fn set_aside(error: Error, aside: &mut Option<Error>) -> Error {
    match error {
        Error::Parallel(_) | Error::Replica { .. } => {
            *aside = Some(error);
            Error::Parallel(kiln_parallel::Error::Broken { reason: "see the error that was set aside".into() })
        }
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use kiln_recovery::classify;

    use super::*;

    #[test]
    fn an_error_is_told_with_its_sources() {
        let error = Error::Model(Box::new(io::Error::other("width 0")));
        assert_eq!(chain(&error), "the model cannot be made: width 0");
        let error = Error::Accumulation(kiln_accumulation::Error::Scale(0.0));
        assert_eq!(chain(&error), error.to_string());
    }

    #[test]
    fn a_panic_is_told_with_its_message() {
        assert_eq!(panicked(&"so"), "it panicked: so");
        assert_eq!(panicked(&String::from("so")), "it panicked: so");
        assert_eq!(panicked(&7), "it panicked: without a message");
    }

    #[test]
    fn an_error_of_the_group_is_no_lack_of_memory() {
        let text = "out of device memory allocating 64 bytes";
        let of_group = Error::Replica { rank: 1, reason: text.into() };
        assert!(classify(&of_group).is_some(), "by its text, it would be tried again");
        let mut aside = None;
        assert!(classify(&set_aside(of_group, &mut aside)).is_none());
        assert!(matches!(aside, Some(Error::Replica { rank: 1, .. })));
        let own = set_aside(Error::NoPrediction, &mut None);
        assert!(matches!(own, Error::NoPrediction));
    }
}
