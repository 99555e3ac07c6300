//! The answers to a failure.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::setting::Setting;

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
