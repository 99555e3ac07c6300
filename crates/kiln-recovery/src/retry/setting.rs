//! The settings that an attempt runs with, and the answers to a failed attempt.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The settings of one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// Samples of a micro-batch.
    pub micro_batch: usize,
    /// The checkpoint plan. 0 is the caller's first; a higher number saves more memory.
    pub plan: usize,
    /// Whether the state that can live on the host is kept there.
    pub offload: bool,
}

impl Setting {
    /// A micro-batch size under a saving level.
    pub(crate) fn new(micro_batch: usize, level: SavingLevel) -> Self {
        Self { micro_batch, plan: level.plan, offload: level.offload }
    }

    /// The part that does not depend on the micro-batch.
    pub(crate) fn level(self) -> SavingLevel {
        SavingLevel { plan: self.plan, offload: self.offload }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "micro-batch {}, plan {}", self.micro_batch, self.plan)?;
        if self.offload { f.write_str(", offload") } else { Ok(()) }
    }
}

/// A checkpoint plan, with or without offload. A stronger level saves memory and costs time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavingLevel {
    /// The checkpoint plan. 0 is the caller's first.
    pub plan: usize,
    /// Whether the state that can live on the host is kept there.
    pub offload: bool,
}

/// The answer to a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Remedy {
    /// Free unused device memory and try the same setting again.
    Reclaim,
    /// Use micro-batches of this size.
    MicroBatch(usize),
    /// Use this checkpoint plan.
    Plan(usize),
    /// Move state that can live on the host there.
    Offload,
    /// Pause this long and try again.
    Wait(Duration),
    /// Go back to this setting, after a try at a larger or faster one.
    Return(Setting),
    /// Nothing is left to try.
    GiveUp,
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reclaim => write!(f, "freed unused device memory"),
            Self::MicroBatch(size) => write!(f, "took micro-batches of {size}"),
            Self::Plan(plan) => write!(f, "took checkpoint plan {plan}"),
            Self::Offload => write!(f, "moved state to the host"),
            Self::Wait(pause) => write!(f, "waited {pause:?} for memory"),
            Self::Return(setting) => write!(f, "went back to {setting}"),
            Self::GiveUp => write!(f, "gave up"),
        }
    }
}
