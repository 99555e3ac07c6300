//! One recording of a step at one batch size, before two of them are merged into a trace.

use burn::tensor::DType;

use super::graph::Graph;

/// A recorded step, with the positions and tensors in it that the recorder knows.
pub(crate) struct Recording {
    pub(crate) graph: Graph,
    pub(crate) tensors: Vec<RecordedTensor>,
    /// The distinct shapes of the tensors.
    pub(crate) shapes: Vec<Vec<usize>>,
    /// Indices of the first operation of the step, of the backward pass, of the update, and after the update.
    pub(crate) phases: [usize; 4],
    pub(crate) cuts: Vec<usize>,
    /// Operations at which the old parameters, gradients and optimizer state of a chunk are dropped.
    pub(crate) releases: Vec<usize>,
    /// The role of each tensor, if it has one.
    pub(crate) roles: Vec<Option<Role>>,
}

/// Shape and element type of a tensor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordedTensor {
    /// Index into [`Recording::shapes`].
    pub(crate) shape: u32,
    pub(crate) dtype: DType,
}

/// The role of a tensor, with the path of its parameter.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Role {
    Parameter(String),
    Gradient(String),
    Updated(String),
}
