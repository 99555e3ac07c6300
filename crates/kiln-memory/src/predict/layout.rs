//! Runs through the operations of a step and gives every tensor its place in memory.

use crate::trace::StepTrace;

use super::lifetimes::ends;
use super::memory::{Block, Memory, Output, tensors_of};
use super::profile::{BackendProfile, Kernels};
use super::sizes::Sizes;
use super::{cube, flex, offloaded, stored};

/// The memory of a step.
pub(super) struct Layout {
    /// Number of samples of the batch.
    pub(super) batch: usize,
    pub(super) blocks: Vec<Block>,
    /// The workspace of each operation, in bytes.
    pub(super) workspaces: Vec<u64>,
    next: Vec<u32>,
}

impl Layout {
    pub(super) fn of(trace: &StepTrace, sizes: &Sizes, profile: &BackendProfile) -> Self {
        let ends = ends(trace);
        let mut memory = Memory::new(trace, sizes, &ends, profile);
        let mut workspaces = Vec::with_capacity(trace.graph.operations.len());
        for (index, operation) in trace.graph.operations.iter().enumerate() {
            for input in trace.graph.inputs(*operation) {
                memory.place(index, input.tensor, Output::New); // a tensor that no operation has made
            }
            let effect = match profile.kernels {
                Kernels::Flex => flex::effect(&memory, index),
                Kernels::Cube => cube::effect(&memory, index),
            };
            let mut places = std::iter::once(effect.output).chain(effect.others);
            for tensor in trace.graph.outputs(*operation) {
                memory.place(index, *tensor, places.next().unwrap_or(Output::New));
            }
            workspaces.push(effect.workspace);
        }
        let (mut blocks, next) = memory.finish();
        if profile.kernels == Kernels::Cube {
            offloaded::shorten(trace, &mut blocks, &next);
        }
        if let Some(streamed) = &trace.stored {
            stored::divide(trace, streamed, &mut blocks, &mut workspaces, &next);
        }
        Self { batch: sizes.batch, blocks, workspaces, next }
    }

    /// The tensors of a block in the order in which they are made.
    pub(super) fn tensors_of(&self, block: &Block) -> impl Iterator<Item = u32> + Clone {
        tensors_of(block, &self.next)
    }
}
