//! The actions of a stage: forward and backward passes of micro-batches.

use std::fmt;

use serde::{Deserialize, Serialize};

/// An action of a stage on one micro-batch. Micro-batches are counted from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Action {
    /// The forward pass of the stage's blocks.
    Forward(usize),
    /// Their backward pass.
    Backward(usize),
}

impl Action {
    /// The micro-batch.
    pub fn micro_batch(self) -> usize {
        match self {
            Self::Forward(micro_batch) | Self::Backward(micro_batch) => micro_batch,
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forward(micro_batch) => write!(f, "forward {micro_batch}"),
            Self::Backward(micro_batch) => write!(f, "backward {micro_batch}"),
        }
    }
}
