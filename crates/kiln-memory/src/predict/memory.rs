//! The tensors of a step in the memory of a device: the blocks of memory, and the layout of each tensor in its block.

use burn::tensor::DType;

use crate::trace::{StepTrace, TraceRole};

use super::profile::BackendProfile;
use super::sizes::Sizes;

/// Stands for "no block", "no tensor" and "row-major" in tables of indices.
const NONE: u32 = u32::MAX;

/// The effect of an operation on memory.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Effect {
    /// Where its first output is.
    pub(super) output: Output,
    /// Where the outputs after the first are. Outputs that are not listed are new.
    pub(super) others: Vec<Output>,
    /// Bytes in addition to inputs and outputs while it runs.
    pub(super) workspace: u64,
}

impl Effect {
    /// An effect with all outputs new except the first.
    pub(super) fn new(output: Output, workspace: u64) -> Self {
        Self { output, others: vec![], workspace }
    }
}

/// Where an output of an operation is.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Output {
    /// In a buffer of its own, in row-major order.
    New,
    /// In a buffer of its own, with the strides of another tensor.
    Like(u32),
    /// In a buffer of its own that may be larger than the tensor.
    Strided { bytes: u64, strides: Vec<isize> },
    /// In the buffer of an input, whose values are overwritten.
    Over(u32),
    /// In the buffer of another tensor, as a view.
    View { of: u32, strides: Strides, offset: bool },
}

/// Strides of a view.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Strides {
    RowMajor,
    /// The strides of another tensor.
    Of(u32),
    Other(Vec<isize>),
}

/// A piece of memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) bytes: u64,
    /// The first operation at which it is alive.
    pub(super) born: u32,
    /// The last operation at which it is alive.
    pub(super) dies: u32,
    /// The tensor that it was made for.
    pub(super) first: u32,
    /// The tensor that was put into it last.
    pub(super) last: u32,
}

/// The layout of a tensor in its block.
#[derive(Clone, Copy, Debug)]
struct Place {
    block: u32,
    /// Where its strides begin in the table of strides, and their number; `NONE` for row-major order.
    strides: u32,
    rank: u16,
    offset: bool,
}

/// All tensors that have been placed so far.
pub(super) struct Memory<'a> {
    pub(super) profile: &'a BackendProfile,
    pub(super) trace: &'a StepTrace,
    pub(super) sizes: &'a Sizes,
    /// The last operation at which each tensor is alive.
    ends: &'a [u32],
    places: Vec<Place>,
    strides: Vec<isize>,
    blocks: Vec<Block>,
    /// The next tensor in the same block.
    next: Vec<u32>,
}

impl<'a> Memory<'a> {
    pub(super) fn new(trace: &'a StepTrace, sizes: &'a Sizes, ends: &'a [u32], profile: &'a BackendProfile) -> Self {
        let tensors = trace.tensors.len();
        let nowhere = Place { block: NONE, strides: NONE, rank: 0, offset: false };
        Self {
            profile,
            trace,
            sizes,
            ends,
            places: vec![nowhere; tensors],
            strides: vec![],
            blocks: Vec::with_capacity(tensors),
            next: vec![NONE; tensors],
        }
    }

    /// The blocks in the order in which they are made, and the table that links the tensors of a block.
    pub(super) fn finish(self) -> (Vec<Block>, Vec<u32>) {
        (self.blocks, self.next)
    }

    /// Puts a tensor in its place, unless it has one.
    pub(super) fn place(&mut self, index: usize, tensor: u32, output: Output) {
        if self.places[tensor as usize].block != NONE {
            return;
        }
        let (block, strides, offset) = match output {
            Output::New => (self.block(index, self.bytes(tensor), tensor), (NONE, 0), false),
            Output::Like(other) => (self.block(index, self.bytes(tensor), tensor), self.copied(tensor, other), false),
            Output::Strided { bytes, strides } => (self.block(index, bytes, tensor), self.stored(&strides), false),
            Output::Over(other) => match self.places[other as usize] {
                Place { block: NONE, .. } => (self.block(index, self.bytes(tensor), tensor), (NONE, 0), false),
                place => (place.block, self.copied(tensor, other), place.offset),
            },
            Output::View { of, strides, offset } => {
                let strides = match strides {
                    Strides::RowMajor => (NONE, 0),
                    Strides::Of(other) => self.copied(tensor, other),
                    Strides::Other(strides) => self.stored(&strides),
                };
                match self.places[of as usize].block {
                    NONE => (self.block(index, self.bytes(tensor), tensor), strides, offset),
                    block => (block, strides, offset),
                }
            }
        };
        let end = self.ends[tensor as usize].max(index as u32);
        let home = &mut self.blocks[block as usize];
        if home.last != tensor {
            self.next[home.last as usize] = tensor;
            home.last = tensor;
        }
        home.dies = home.dies.max(end);
        self.places[tensor as usize] = Place { block, strides: strides.0, rank: strides.1, offset };
    }

    fn block(&mut self, index: usize, bytes: u64, tensor: u32) -> u32 {
        let index = index as u32;
        self.blocks.push(Block { bytes, born: index, dies: index, first: tensor, last: tensor });
        self.blocks.len() as u32 - 1
    }

    fn stored(&mut self, strides: &[isize]) -> (u32, u16) {
        self.strides.extend_from_slice(strides);
        ((self.strides.len() - strides.len()) as u32, strides.len() as u16)
    }

    /// Copies the strides of another tensor for `tensor`.
    fn copied(&mut self, tensor: u32, other: u32) -> (u32, u16) {
        match self.places[other as usize] {
            Place { strides: NONE, .. } if self.sizes.same_shape(tensor, other) => (NONE, 0),
            Place { strides: NONE, .. } => self.stored(self.sizes.row_major(other)),
            Place { strides, rank, .. } => (strides, rank),
        }
    }

    /// Whether an operation adds a gradient to the sum of those before it.
    pub(super) fn is_sum_of_gradients(&self, index: usize) -> bool {
        let is_gradient = |tensor: u32| self.trace.tensors[tensor as usize].role == TraceRole::Gradient;
        let (inputs, outputs) = (self.trace.graph.inputs_at(index), self.trace.graph.outputs_at(index));
        inputs.iter().any(|input| is_gradient(input.tensor)) && outputs.iter().any(|output| is_gradient(*output))
    }

    pub(super) fn shape(&self, tensor: u32) -> &'a [usize] {
        self.sizes.shape(tensor)
    }

    pub(super) fn dtype(&self, tensor: u32) -> DType {
        self.trace.tensors[tensor as usize].dtype
    }

    pub(super) fn bytes(&self, tensor: u32) -> u64 {
        self.sizes.bytes(tensor)
    }

    pub(super) fn strides(&self, tensor: u32) -> &[isize] {
        match self.places[tensor as usize] {
            Place { block: NONE, .. } => &[],
            Place { strides: NONE, .. } => self.sizes.row_major(tensor),
            Place { strides, rank, .. } => &self.strides[strides as usize..][..usize::from(rank)],
        }
    }

    pub(super) fn has_offset(&self, tensor: u32) -> bool {
        self.places[tensor as usize].offset
    }

    /// Whether its elements follow each other in row-major order. As in burn-flex, a stride of 0 is never in order.
    pub(super) fn is_contiguous(&self, tensor: u32) -> bool {
        let place = self.places[tensor as usize];
        if place.block != NONE && place.strides == NONE {
            return true;
        }
        let (shape, strides) = (self.shape(tensor), self.strides(tensor));
        if shape.contains(&0) {
            return true;
        }
        let mut expected = 1;
        for (dim, stride) in shape.iter().zip(strides).rev() {
            if *stride <= 0 || (*dim != 1 && *stride != expected) {
                return false;
            }
            expected *= *dim as isize;
        }
        true
    }

    /// Whether its elements are in row-major order and begin where its block begins.
    pub(super) fn is_dense(&self, tensor: u32) -> bool {
        !self.has_offset(tensor) && self.is_contiguous(tensor)
    }

    /// Whether its elements are in row-major order and fill its block.
    pub(super) fn is_exact(&self, tensor: u32) -> bool {
        self.has_all(tensor) && self.is_dense(tensor)
    }

    /// Whether it has every element of its block exactly once, in any order.
    pub(super) fn fills_its_buffer(&self, tensor: u32) -> bool {
        let positive = self.strides(tensor).iter().all(|stride| *stride > 0);
        positive && !self.has_offset(tensor) && self.has_all(tensor)
    }

    fn has_all(&self, tensor: u32) -> bool {
        match self.places[tensor as usize].block {
            NONE => true,
            block => self.blocks[block as usize].bytes == self.bytes(tensor),
        }
    }

    /// Whether an operation is the only user of the block of its input.
    pub(super) fn is_unique(&self, index: usize, tensor: u32) -> bool {
        let block = self.places[tensor as usize].block;
        if block == NONE {
            return false;
        }
        let mut uses = self.trace.graph.inputs_at(index).iter().filter(|input| input.tensor == tensor);
        let last = uses.next().is_some_and(|input| input.last) && uses.next().is_none();
        last && tensors_of(&self.blocks[block as usize], &self.next)
            .all(|other| other == tensor || (self.ends[other as usize] as usize) < index)
    }
}

/// The tensors of a block in the order in which they are made.
pub(super) fn tensors_of(block: &Block, next: &[u32]) -> impl Iterator<Item = u32> + Clone {
    std::iter::successors(Some(block.first), |tensor| {
        let next = next[*tensor as usize];
        (next != NONE).then_some(next)
    })
}
