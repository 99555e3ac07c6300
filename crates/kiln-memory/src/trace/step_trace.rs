//! The trace of a training step, with shapes as functions of the batch size.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use burn::tensor::DType;
use serde::{Deserialize, Serialize};

use super::graph::Graph;

/// A training step as a graph of operations. Its memory follows from it for any batch size and backend.
///
/// [`record_step`](crate::record_step) makes it. Shapes are kept as functions of the batch size: a dimension that differs between the two
/// recordings grows with the batch, any other is constant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepTrace {
    pub(crate) graph: Graph,
    pub(crate) tensors: Vec<TraceTensor>,
    /// The distinct shapes: each dimension at the two recorded batch sizes.
    pub(crate) shapes: Vec<Vec<[usize; 2]>>,
    /// Paths of parameters and modules.
    pub(crate) paths: Vec<String>,
    /// The parameters that learn, in the order of the fields: indices into `paths`.
    pub(crate) learned: Vec<u32>,
    /// Indices of the first operation of the step, of the backward pass, of the update, and after the update. Operations before the first
    /// one make parameters and optimizer state.
    pub(crate) phases: [usize; 4],
    /// Positions between the blocks of a chain.
    pub(crate) cuts: Vec<usize>,
    /// Operations at which the old parameters, gradients and optimizer state of a chunk are dropped.
    pub(crate) releases: Vec<usize>,
    pub(crate) batches: [usize; 2],
    /// Operations of the forward pass that are not in burn's graph at its end, since segments are recomputed one at a time.
    #[serde(default)]
    pub(crate) recomputed: usize,
    /// Parameters and running statistics of the segments that are recomputed, each of which keeps a copy of its blocks.
    #[serde(default)]
    pub(crate) copied: usize,
    /// The segments whose parameters are in a store, if gradients and optimizer state are in one.
    #[serde(default)]
    pub(crate) stored: Option<Vec<Range<usize>>>,
    /// The bytes of each parameter that an update in a store has in memory, if it divides parameters.
    #[serde(default)]
    pub(crate) parts: BTreeMap<String, u64>,
    /// Parameters that several operations use, if rows are added in their order.
    #[serde(default)]
    pub(crate) shared: BTreeSet<String>,
    /// Parameters whose gradients are not added row after row.
    #[serde(default)]
    pub(crate) apart: BTreeSet<String>,
    /// Parameters that are in memory some rows at a time if there is a store, with the bytes that an update has in memory.
    pub(crate) by_rows: BTreeMap<String, u64>,
}

/// A tensor of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TraceTensor {
    /// Index into [`StepTrace::shapes`].
    pub(crate) shape: u32,
    pub(crate) dtype: DType,
    pub(crate) role: TraceRole,
    /// Index into [`StepTrace::paths`]: the parameter, or the module that the tensor was made in.
    pub(crate) path: Option<u32>,
}

/// The role of a tensor in the step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum TraceRole {
    #[default]
    Other,
    Parameter,
    Gradient,
    /// A parameter after the update.
    Updated,
    Input,
}

impl StepTrace {
    /// Number of operations of the step.
    pub fn len(&self) -> usize {
        self.phases[3] - self.phases[0]
    }

    /// Whether the step has no operations.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the forward pass draws random numbers, as dropout does.
    pub fn draws_random(&self) -> bool {
        let forward = &self.graph.operations[self.phases[0]..self.phases[1]];
        forward.iter().any(|operation| self.graph.kinds[operation.kind as usize].name.contains("Random"))
    }

    /// Number of blocks between the [`cuts`](crate::Recorder::cut).
    pub fn blocks(&self) -> usize {
        self.cuts.len().saturating_sub(1)
    }

    /// The number of tensors with a role.
    pub(crate) fn with_role(&self, role: TraceRole) -> u64 {
        self.tensors.iter().filter(|tensor| tensor.role == role).count() as u64
    }

    /// The path of a tensor's parameter or module, if known.
    pub(crate) fn path_of(&self, tensor: usize) -> Option<&str> {
        self.tensors[tensor].path.map(|path| self.paths[path as usize].as_str())
    }
}
