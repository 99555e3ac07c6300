//! Options that help: with an error of a library, which does not know the program's options, and against the peak of a run.

use anyhow::{Error, anyhow};
use kiln_checkpointing::{Mode, Plan};
use kiln_data::Error as DataError;
use kiln_memory::Suggestion;
use kiln_training::{PlannedOptimizer, Remedy, StepChange, Task, Trainer};

use crate::shell::quoted;

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

/// Changes of the run that a reader of a report can make, whose peaks are those that a meter sees. Empty if the run's steps were not predicted.
pub(crate) fn suggestions<T: Task>(trainer: &Trainer<T>) -> Vec<Suggestion> {
    let Some(plan) = trainer.plan() else { return vec![] };
    let seen = |bytes: u64| bytes.saturating_sub(trainer.context_bytes());
    let (before, limit) = (seen(plan.peak_bytes), trainer.limit_bytes().map(seen));
    let remedies = match trainer.remedies() {
        Ok(remedies) => remedies,
        Err(error) => {
            tracing::warn!("the report lists no changes that lower the peak: {error}");
            return vec![];
        }
    };
    remedies.iter().map(|remedy| suggestion(remedy, (before, seen(remedy.plan.peak_bytes)), limit)).collect()
}

fn suggestion(remedy: &Remedy, (before, after): (u64, u64), limit: Option<u64>) -> Suggestion {
    let Remedy { change, plan, relative_time, .. } = remedy;
    let micro_batch = format!("--micro-batch {}", plan.micro_batch);
    let checkpointing = format!("--checkpointing {}", quoted(&plan.checkpoints.to_string()));
    let optimizer = plan.optimizer.to_string();
    let rounding = match plan.same_bits {
        true => "the same numbers",
        false => "gradients are added up: numbers differ by rounding, and more with batch-norm or dropout",
    };
    let (name, option, note) = match change {
        StepChange::MicroBatch => (format!("micro-batches of {}", plan.micro_batch), micro_batch, rounding),
        StepChange::Checkpoints => (recomputing(&plan.checkpoints), checkpointing, "the same numbers"),
        StepChange::MicroBatchAndCheckpoints => {
            let name = format!("{}, micro-batches of {}", recomputing(&plan.checkpoints), plan.micro_batch);
            (name, format!("{checkpointing} {micro_batch}"), rounding)
        }
        StepChange::Precision => {
            let note = "other numbers: compare the loss";
            (format!("compute in {}", plan.precision), format!("--precision {}", plan.precision), note)
        }
        StepChange::OffloadedOptimizer => {
            ("optimizer state in host memory".into(), "--optimizer-offload".into(), "the same numbers")
        }
        _ => {
            // The place of the state is a separate setting, which the run keeps.
            let option = match &plan.optimizer {
                PlannedOptimizer::Other { name, .. } => format!("--optimizer {name}"),
                _ => String::new(),
            };
            (format!("optimizer {optimizer}"), option, "other numbers: compare the loss")
        }
    };
    let suggestion = Suggestion::new(name, before, after).with_relative_time(*relative_time);
    let suggestion = suggestion.with_option(option).with_note(note);
    let suggestion = match limit {
        Some(limit) => suggestion.with_limit(limit),
        None => suggestion,
    };
    // The planner keeps a margin to the limit.
    match plan.fits {
        true => suggestion,
        false => suggestion.with_limit(0),
    }
}

/// A checkpoint plan in words.
fn recomputing(plan: &Plan) -> String {
    let segments = || plan.segments().iter().filter(|segment| segment.mode != Mode::Plain);
    let offloaded = segments().any(|segment| segment.mode == Mode::Offload);
    let inputs = if offloaded { ", inputs in host memory" } else { "" };
    match segments().map(|segment| segment.blocks.len()).max() {
        Some(1) => format!("recompute every block{inputs}"),
        Some(longest) => format!("recompute segments of {longest} blocks{inputs}"),
        None => "recompute nothing".to_owned(),
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

    #[test]
    fn plans_are_said_in_words() {
        assert_eq!(recomputing(&Plan::every(9, 1).unwrap()), "recompute every block");
        assert_eq!(recomputing(&Plan::every(9, 3).unwrap()), "recompute segments of 3 blocks");
        assert_eq!(recomputing(&Plan::offload(4, 1).unwrap()), "recompute every block, inputs in host memory");
        assert_eq!(recomputing(&Plan::none(4)), "recompute nothing");
    }
}
