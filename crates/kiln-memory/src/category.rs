//! Categories of memory and phases of a training step.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The purpose of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Category {
    /// Weights, and buffers of the model such as running statistics.
    Parameter,
    /// Gradients of parameters, sums over micro-batches included.
    Gradient,
    /// State of the optimizer, which it keeps between steps.
    OptimizerState,
    /// The batch.
    Input,
    /// Batches that the data loader has in flight and images that it decodes, where they lie in the device's memory.
    DataLoader,
    /// Tensors that are made in the forward pass and kept for the backward pass.
    Activation,
    /// Tensors that live within one phase.
    Transient,
    /// Bytes that a kernel allocates while it runs, and bytes of the device's runtime and of burn's graph.
    Workspace,
}

impl Category {
    /// All categories, in the order in which reports list them.
    pub const ALL: [Self; 8] = [
        Self::Parameter,
        Self::Gradient,
        Self::OptimizerState,
        Self::Input,
        Self::DataLoader,
        Self::Activation,
        Self::Transient,
        Self::Workspace,
    ];
}

impl fmt::Display for Category {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Parameter => "parameters",
            Self::Gradient => "gradients",
            Self::OptimizerState => "optimizer state",
            Self::Input => "input",
            Self::DataLoader => "data loader",
            Self::Activation => "saved activations",
            Self::Transient => "transient",
            Self::Workspace => "workspace",
        })
    }
}

/// Bytes of each category.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Breakdown(pub BTreeMap<Category, u64>);

impl Breakdown {
    /// Bytes of one category.
    pub fn of(&self, category: Category) -> u64 {
        self.0.get(&category).copied().unwrap_or(0)
    }

    /// Bytes of all categories.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// Adds `bytes` to a category.
    pub fn add(&mut self, category: Category, bytes: u64) {
        *self.0.entry(category).or_default() += bytes;
    }
}

/// A part of a training step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// From the batch to the loss.
    Forward,
    /// From the loss to the gradients.
    Backward,
    /// From the gradients to new parameters.
    Optimizer,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Optimizer => "optimizer",
        })
    }
}
