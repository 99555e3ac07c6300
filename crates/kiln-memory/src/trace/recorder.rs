//! The value with which the forward pass of a recording gets its device and batch size, and marks positions.

use super::graph::Graph;
use burn::tensor::DType;
use std::cell::RefCell;
use std::collections::BTreeSet;

use burn::backend::Capture;
use burn::backend::capture::TensorId;
use burn::tensor::{Device, Tensor};
use kiln_operations::SumUses;

/// Gives the forward pass of a recording its device and batch size, and marks positions in it.
#[derive(Debug)]
pub struct Recorder {
    pub(super) device: Device,
    pub(super) batch: usize,
    pub(super) cuts: RefCell<Vec<TensorId>>,
}

impl Recorder {
    /// The device to make the input on. Zeros of the right shape suffice, as nothing is computed.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Number of samples in this recording.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Marks the position between two blocks of a chain, for [`StepTrace::with_plan`](crate::StepTrace::with_plan). Call it once before
    /// the first block, and after every block.
    pub fn cut(&self) {
        self.mark(&mut self.cuts.borrow_mut());
    }

    pub(super) fn mark(&self, marks: &mut Vec<TensorId>) {
        mark(&self.device.clone().inner(), marks);
    }
}

/// Marks the current position by an operation that has no other meaning.
pub(super) fn mark(device: &Device, marks: &mut Vec<TensorId>) {
    if let Ok(primitive) = Tensor::<1>::zeros([1], device).try_into_primitive::<Capture>() {
        marks.push(primitive.id());
    }
}

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
    /// Paths of the parameters that learn, in the order of the fields.
    pub(crate) learned: Vec<String>,
    /// The uses of parameters that have running sums.
    pub(crate) uses: SumUses,
    /// Paths of the parameters that several operations use, if they have running sums.
    pub(crate) shared: BTreeSet<String>,
    /// Paths of the parameters whose gradients are not in running sums.
    pub(crate) apart: BTreeSet<String>,
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
