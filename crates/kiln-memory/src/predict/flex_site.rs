//! An operation on burn's CPU device, with the properties of its inputs and outputs that the memory rules need.

use burn::tensor::DType;

use crate::trace::{Detail, Use};

use super::memory::{Effect, Memory, Output};

/// An operation, its tensors, and the memory before it runs.
pub(super) struct Site<'a> {
    pub(super) memory: &'a Memory<'a>,
    /// The operation's name with its family: `Module.Conv2d`.
    pub(super) name: &'a str,
    pub(super) inputs: &'a [Use],
    pub(super) outputs: &'a [u32],
    pub(super) detail: &'a Detail,
    pub(super) index: usize,
}

impl<'a> Site<'a> {
    pub(super) fn new(memory: &'a Memory<'a>, index: usize) -> Self {
        let graph = &memory.trace.graph;
        let operation = graph.operations[index];
        let kind = graph.kind(operation);
        let (inputs, outputs) = (graph.inputs(operation), graph.outputs(operation));
        Self { memory, name: &kind.name, inputs, outputs, detail: &kind.detail, index }
    }

    pub(super) fn input(&self, position: usize) -> Option<u32> {
        self.inputs.get(position).map(|input| input.tensor)
    }

    pub(super) fn shape(&self, position: usize) -> &[usize] {
        self.input(position).map_or(&[], |tensor| self.memory.shape(tensor))
    }

    pub(super) fn out_shape(&self) -> &[usize] {
        self.outputs.first().map_or(&[], |tensor| self.memory.shape(*tensor))
    }

    pub(super) fn bytes(&self, position: usize) -> u64 {
        self.input(position).map_or(0, |tensor| self.memory.bytes(tensor))
    }

    pub(super) fn out_bytes(&self) -> u64 {
        self.outputs.first().map_or(0, |tensor| self.memory.bytes(*tensor))
    }

    /// Bytes of a copy of an input, if the kernel needs one: Flex copies a tensor to row-major order if it does not fill its buffer.
    pub(super) fn copy(&self, position: usize) -> u64 {
        match self.input(position) {
            Some(tensor) if !self.memory.is_exact(tensor) => self.memory.bytes(tensor),
            _ => 0,
        }
    }

    pub(super) fn is_half(&self) -> bool {
        self.input(0).is_some_and(|tensor| matches!(self.memory.dtype(tensor), DType::F16 | DType::BF16))
    }

    /// Whether an input may be written over: no other tensor uses its buffer, and it begins where the buffer begins.
    pub(super) fn reusable(&self, position: usize) -> bool {
        let same_size = self.bytes(position) == self.out_bytes();
        self.input(position).is_some_and(|tensor| {
            same_size && self.memory.is_unique(self.index, tensor) && self.memory.is_dense(tensor)
        })
    }

    /// All outputs are new, in row-major order.
    pub(super) fn fresh(&self, workspace: u64) -> Effect {
        Effect::new(Output::New, workspace)
    }

    pub(super) fn over(&self, position: usize, workspace: u64) -> Effect {
        match self.input(position) {
            Some(tensor) => Effect::new(Output::Over(tensor), workspace),
            None => self.fresh(workspace),
        }
    }
}
