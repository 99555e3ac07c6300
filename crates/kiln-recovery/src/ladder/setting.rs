//! The settings that an attempt runs with.

use std::fmt;

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
