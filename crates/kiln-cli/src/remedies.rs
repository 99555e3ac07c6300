//! Changes that lower the peak of a run, with the options that make them.

use kiln_checkpointing::{Mode, Plan};
use kiln_memory::Suggestion;
use kiln_training::{PlannedOptimizer, Remedy, StepChange, Task, Trainer};

use crate::shell::quoted;

/// Changes of the run that a reader of a report can make. Empty if the run's steps were not predicted.
pub(crate) fn suggestions<T: Task>(trainer: &Trainer<T>) -> Vec<Suggestion> {
    let Some(plan) = trainer.plan() else { return vec![] };
    let (before, limit) = (plan.peak_bytes, trainer.limit_bytes());
    let remedies = match trainer.remedies() {
        Ok(remedies) => remedies,
        Err(error) => {
            tracing::warn!("the report lists no changes that lower the peak: {error}");
            return vec![];
        }
    };
    remedies.iter().map(|remedy| suggestion(remedy, before, limit)).collect()
}

fn suggestion(remedy: &Remedy, before: u64, limit: Option<u64>) -> Suggestion {
    let Remedy { change, plan, relative_time, .. } = remedy;
    let micro_batch = format!("--micro-batch {}", plan.micro_batch);
    let checkpointing = format!("--checkpointing {}", quoted(&plan.checkpoints.to_string()));
    let optimizer = plan.optimizer.to_string();
    let rounding = "gradients are added up: numbers differ by rounding, and more with batch-norm or dropout";
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
    let suggestion = Suggestion::new(name, before, plan.peak_bytes).with_relative_time(*relative_time);
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
    fn plans_are_said_in_words() {
        assert_eq!(recomputing(&Plan::every(9, 1).unwrap()), "recompute every block");
        assert_eq!(recomputing(&Plan::every(9, 3).unwrap()), "recompute segments of 3 blocks");
        assert_eq!(recomputing(&Plan::offload(4, 1).unwrap()), "recompute every block, inputs in host memory");
        assert_eq!(recomputing(&Plan::none(4)), "recompute nothing");
    }
}
