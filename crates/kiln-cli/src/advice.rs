//! Adds the options that help to an error of a library, which does not know the program's options.

use anyhow::{Error, anyhow};
use kiln_data::Error as DataError;

/// Adds the options that help to an error of a command that takes steps. An error that names them already stays unchanged.
pub(crate) fn advised(error: Error) -> Error {
    let advice = error.chain().find_map(|cause| match cause.downcast_ref() {
        // Only errors of a batch: data that is read before, such as names of classes, cannot be skipped.
        Some(kiln_training::Error::Data(cause)) => of_batch(cause, "--memory or --loader-memory"),
        _ => match cause.downcast_ref() {
            Some(cause @ DataError::TooLarge { .. }) => of_batch(cause, "--memory or --loader-memory"),
            _ => None,
        },
    });
    with(error, advice)
}

/// Adds the options that help to an error of a batch that is loaded without steps.
pub(crate) fn advised_on_loading(error: DataError) -> Error {
    let advice = of_batch(&error, "--loader-memory");
    with(error.into(), advice)
}

fn with(error: Error, advice: Option<String>) -> Error {
    match advice {
        Some(text) => anyhow!("{error:#}; {text}"),
        None => error,
    }
}

fn of_batch(error: &DataError, budgets: &str) -> Option<String> {
    match error {
        DataError::TooLarge { .. } => {
            Some(format!("a larger {budgets} allows it, and --bad-samples skip:N leaves it out"))
        }
        cause if cause.is_of_a_sample() => Some("--bad-samples skip:N leaves it out".into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_that_cannot_be_read_is_advised_on_once() {
        let bad = || DataError::SamplePanic { id: 3, message: "gone".into() };
        let in_step = Error::from(kiln_training::Error::Data(bad())).context("step 7");
        for error in [advised(advised(in_step)), advised(advised_on_loading(bad()))] {
            let text = format!("{error:#}");
            assert_eq!(text.matches("; --bad-samples skip:N leaves it out").count(), 1, "{text}");
        }
        // An error that no batch caused.
        assert_eq!(format!("{:#}", advised(anyhow!("no data"))), "no data");
        assert_eq!(format!("{:#}", advised(bad().into())), format!("{}", bad()));
    }
}
