//! The options that help against an error of a library, which does not know them.

use anyhow::{Error, anyhow};

use crate::cli::Command;

/// The error of a command that loads data for steps, with the options that help. An error that has them already stays as it is.
pub(crate) fn advised(error: Error) -> Error {
    match advice(&error) {
        Some(text) => anyhow!("{error:#}; {text}"),
        None => error,
    }
}

/// Whether a command has the options that are advised.
pub(crate) fn has_options_of_loading(command: &Command) -> bool {
    matches!(command, Command::Train(_) | Command::Memory(_) | Command::Load(_))
}

fn advice(error: &Error) -> Option<&'static str> {
    let of_data = error.chain().find_map(|cause| match cause.downcast_ref() {
        Some(kiln_training::Error::Data(cause)) => Some(cause),
        _ => cause.downcast_ref::<kiln_data::Error>(),
    })?;
    match of_data {
        kiln_data::Error::TooLarge { .. } => {
            Some("a larger --memory or --loader-memory allows it, and --bad-samples skip:N leaves it out")
        }
        cause if cause.is_of_a_sample() => Some("--bad-samples skip:N leaves it out"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_that_cannot_be_read_is_advised_on_once() {
        let bad = || kiln_data::Error::SamplePanic { id: 3, message: "gone".into() };
        for error in [Error::from(bad()), Error::from(kiln_training::Error::Data(bad())).context("step 7")] {
            let text = format!("{:#}", advised(advised(error)));
            assert_eq!(text.matches("; --bad-samples skip:N leaves it out").count(), 1, "{text}");
        }
        assert_eq!(format!("{:#}", advised(anyhow!("no data"))), "no data");
    }
}
