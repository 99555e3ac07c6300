//! One way to take a step: micro-batch, precision, optimizer and checkpoint plan, with the predicted peak and time.

use std::fmt;

use bytesize::ByteSize;
use kiln_checkpointing::Plan;
use kiln_precision::Precision;
use serde::{Deserialize, Serialize};

/// The optimizer that a plan uses: the run's own, or an allowed replacement.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum PlannedOptimizer {
    /// The run's own.
    #[default]
    Own,
    /// The run's own, with its state in host memory.
    OwnOnHost,
    /// Another optimizer.
    Other {
        /// The name that it was allowed under.
        name: String,
        /// Whether its state is in host memory.
        on_host: bool,
    },
}

impl PlannedOptimizer {
    /// Another optimizer with its state in host memory, which plans call `name`.
    pub fn on_host(name: impl Into<String>) -> Self {
        Self::Other { name: name.into(), on_host: true }
    }

    /// Whether the plan moves the state to host memory. The run's own optimizer may keep its state there anyway.
    pub fn is_on_host(&self) -> bool {
        matches!(self, Self::OwnOnHost | Self::Other { on_host: true, .. })
    }

    /// Whether the parameters have the same bits as with the run's own optimizer.
    pub fn has_same_numbers(&self) -> bool {
        matches!(self, Self::Own | Self::OwnOnHost)
    }

    /// The name, in a run whose own optimizer is called `own`.
    pub fn name<'a>(&'a self, own: &'a str) -> &'a str {
        match self {
            Self::Own | Self::OwnOnHost => own,
            Self::Other { name, .. } => name,
        }
    }
}

impl From<String> for PlannedOptimizer {
    /// Another optimizer of this name, with its state on the device.
    fn from(name: String) -> Self {
        Self::Other { name, on_host: false }
    }
}

impl From<&str> for PlannedOptimizer {
    /// Another optimizer of this name, with its state on the device.
    fn from(name: &str) -> Self {
        name.to_owned().into()
    }
}

impl fmt::Display for PlannedOptimizer {
    /// `own optimizer`, `optimizer state in host memory` or `adamw8bit in host memory`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own => f.write_str("own optimizer"),
            Self::OwnOnHost => f.write_str("optimizer state in host memory"),
            Self::Other { name, on_host: false } => f.write_str(name),
            Self::Other { name, on_host: true } => write!(f, "{name} in host memory"),
        }
    }
}

/// One way to take a step, with its predicted peak and time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StepPlan {
    /// Samples of a whole batch.
    pub batch: usize,
    /// Samples of a micro-batch.
    pub micro_batch: usize,
    /// The precision that layers compute in.
    pub precision: Precision,
    /// The optimizer.
    #[serde(default)]
    pub optimizer: PlannedOptimizer,
    /// How the blocks are run.
    pub checkpoints: Plan,
    /// The most bytes at once, predicted.
    pub peak_bytes: u64,
    /// Estimated seconds of a step on the whole batch.
    pub seconds: f64,
    /// Bytes that a step reads from a store and writes to it. 0 for a plan that streams nothing.
    #[serde(default)]
    pub moved_bytes: u64,
    /// Whether the step has the bits of any other micro-batch, since its rows are added [in order](crate::Exact).
    #[serde(default)]
    pub same_bits: bool,
    /// Whether the peak stays within the limit that was asked for, and each tensor within the device's largest buffer.
    pub fits: bool,
}

impl fmt::Display for StepPlan {
    /// `micro-batches of 16 of 64, f32, blocks 0 to 1 of 4 recomputed in one segment: predicted peak 96.1 MiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { batch, micro_batch, precision, optimizer, checkpoints, peak_bytes, moved_bytes, .. } = self;
        match micro_batch < batch {
            true if self.same_bits => write!(f, "micro-batches of {micro_batch} of {batch}: same bits")?,
            true => write!(f, "micro-batches of {micro_batch} of {batch}")?,
            false => write!(f, "whole batches of {batch}")?,
        }
        match checkpoints.recomputed() {
            0 => write!(f, ", {precision}, nothing recomputed")?,
            _ => write!(f, ", {precision}, {}", checkpoints.describe())?,
        }
        if *optimizer != PlannedOptimizer::Own {
            write!(f, ", {optimizer}")?;
        }
        if *moved_bytes > 0 {
            write!(f, ", {} a step to and from the store", ByteSize(*moved_bytes))?;
        }
        write!(f, ": predicted peak {}", ByteSize(*peak_bytes))
    }
}

impl StepPlan {
    /// The fastest of `plans` that fits, one that streams only if no other does. Among plans within 2 % of its time it takes the one with the largest micro-batch, and then the
    /// one with the lowest peak.
    pub fn fastest(plans: &[Self]) -> Option<&Self> {
        let fits = |plan: &&Self| plan.fits;
        let streams = !plans.iter().filter(fits).any(|plan| !plan.checkpoints.streams());
        let fitting = || plans.iter().filter(fits).filter(|plan| plan.checkpoints.streams() == streams);
        let fastest = fitting().map(|plan| plan.seconds).min_by(f64::total_cmp)?;
        let fast = fitting().filter(|plan| plan.seconds <= 1.02 * fastest);
        fast.max_by_key(|plan| (plan.micro_batch, std::cmp::Reverse(plan.peak_bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::PlannedOptimizer::{Other, Own, OwnOnHost};
    use super::*;

    fn plan(seconds: f64, peak_bytes: u64, fits: bool) -> StepPlan {
        let checkpoints = Plan::none(1);
        let (precision, optimizer) = (Precision::F32, Own);
        StepPlan {
            batch: 4,
            micro_batch: 1,
            precision,
            optimizer,
            checkpoints,
            peak_bytes,
            seconds,
            moved_bytes: 0,
            same_bits: false,
            fits,
        }
    }

    #[test]
    fn the_fastest_plan_that_fits_is_chosen_and_of_equals_the_largest_micro_batch() {
        assert!(StepPlan::fastest(&[plan(1.0, 10, false)]).is_none());
        let plans = [plan(0.5, 90, false), plan(1.01, 40, true), plan(1.0, 60, true), plan(3.0, 10, true)];
        assert_eq!(StepPlan::fastest(&plans).unwrap().peak_bytes, 40);
        let larger = StepPlan { micro_batch: 2, ..plan(1.01, 80, true) };
        assert_eq!(StepPlan::fastest(&[&plans[..], &[larger]].concat()).unwrap().peak_bytes, 80);
    }

    #[test]
    fn a_plan_is_explained_in_one_line() {
        let text = plan(1.0, 3 << 20, true).to_string();
        assert_eq!(text, "micro-batches of 1 of 4, f32, nothing recomputed: predicted peak 3.0 MiB");
        let exact = StepPlan { same_bits: true, ..plan(1.0, 3 << 20, true) }.to_string();
        assert_eq!(exact, "micro-batches of 1 of 4: same bits, f32, nothing recomputed: predicted peak 3.0 MiB");
    }

    #[test]
    fn an_optimizer_in_fewer_bits_is_told_from_the_own_one_on_the_host() {
        let other = |on_host| Other { name: "sgd8bit".into(), on_host };
        let facts = |of: &PlannedOptimizer| (of.is_on_host(), of.has_same_numbers(), of.name("sgd").to_owned());
        assert_eq!(facts(&Own), (false, true, "sgd".into()));
        assert_eq!(facts(&OwnOnHost), (true, true, "sgd".into()));
        assert_eq!(facts(&other(false)), (false, false, "sgd8bit".into()));
        assert_eq!(facts(&other(true)), (true, false, "sgd8bit".into()));
        assert_eq!(other(true).to_string(), "sgd8bit in host memory");
    }
}
