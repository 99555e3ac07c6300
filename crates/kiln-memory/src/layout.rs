use crate::profile::{BackendProfile, Kernels};
use crate::program::{Program, Use};
use crate::{cube, flex};

/// Where an output of an operation lives.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Output {
    /// In a buffer of its own, in row-major order.
    New,
    /// In a buffer of its own, with the strides of another tensor.
    Like(usize),
    /// In a buffer of its own that may be larger.
    Strided { bytes: u64, strides: Vec<isize> },
    /// In the buffer of an input, whose values are overwritten.
    Over(usize),
    /// In the buffer of another tensor, seen otherwise.
    View { of: usize, strides: Vec<isize>, offset: bool },
}

/// What an operation does to memory.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Effect {
    pub(crate) outputs: Vec<Output>,
    /// Bytes beyond inputs and outputs while it runs.
    pub(crate) workspace: u64,
}

/// A piece of memory.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) bytes: u64,
    /// The tensors that live in it, in the order in which they are made.
    pub(crate) tensors: Vec<usize>,
    pub(crate) born: usize,
    pub(crate) dies: usize,
}

/// How a tensor lies in its block.
#[derive(Clone, Debug)]
struct Place {
    block: usize,
    strides: Vec<isize>,
    offset: bool,
}

/// Goes through a program and gives every tensor a place.
pub(crate) struct Machine<'a> {
    pub(crate) profile: &'a BackendProfile,
    program: &'a Program,
    /// Index of the last operation that each tensor is alive in.
    ends: &'a [usize],
    places: Vec<Option<Place>>,
    blocks: Vec<Block>,
}

/// Strides of a tensor without gaps.
pub(crate) fn row_major(shape: &[usize]) -> Vec<isize> {
    let mut strides = vec![1; shape.len()];
    for dim in (1..shape.len()).rev() {
        strides[dim - 1] = strides[dim] * shape[dim] as isize;
    }
    strides
}

impl<'a> Machine<'a> {
    /// The blocks of a program, and the workspace of its operations. `ends` says how long each tensor is held.
    pub(crate) fn run(program: &'a Program, ends: &'a [usize], profile: &'a BackendProfile) -> (Vec<Block>, Vec<u64>) {
        let places = vec![None; program.tensors.len()];
        let mut machine = Self { profile, program, ends, places, blocks: vec![] };
        let mut workspaces = Vec::with_capacity(program.operations.len());
        for (index, op) in program.operations.iter().enumerate() {
            for Use { tensor, .. } in &op.inputs {
                machine.place(index, *tensor, Output::New); // what no operation has made
            }
            let effect = match profile.kernels {
                Kernels::Flex => flex::effect(&machine, index, op),
                Kernels::Cube => cube::effect(&machine, index, op),
            };
            let mut outputs = effect.outputs.into_iter();
            for tensor in &op.outputs {
                machine.place(index, *tensor, outputs.next().unwrap_or(Output::New));
            }
            workspaces.push(effect.workspace);
        }
        (machine.blocks, workspaces)
    }

    fn place(&mut self, index: usize, tensor: usize, output: Output) {
        if self.places[tensor].is_some() {
            return;
        }
        let end = self.ends[tensor].max(index);
        let contiguous = row_major(self.shape(tensor));
        let (block, strides, offset) = match output {
            Output::New => (self.block(index, self.bytes(tensor)), contiguous, false),
            Output::Like(other) => (self.block(index, self.bytes(tensor)), self.strides(other).to_vec(), false),
            Output::Strided { bytes, strides } => (self.block(index, bytes), strides, false),
            Output::Over(other) => match &self.places[other] {
                Some(place) => (place.block, place.strides.clone(), place.offset),
                None => (self.block(index, self.bytes(tensor)), contiguous, false),
            },
            Output::View { of, strides, offset } => match &self.places[of] {
                Some(place) => (place.block, strides, offset),
                None => (self.block(index, self.bytes(tensor)), strides, offset),
            },
        };
        let home = &mut self.blocks[block];
        home.tensors.push(tensor);
        home.dies = home.dies.max(end);
        self.places[tensor] = Some(Place { block, strides, offset });
    }

    fn block(&mut self, index: usize, bytes: u64) -> usize {
        self.blocks.push(Block { bytes, tensors: vec![], born: index, dies: index });
        self.blocks.len() - 1
    }

    pub(crate) fn shape(&self, tensor: usize) -> &'a [usize] {
        &self.program.tensors[tensor].shape
    }

    pub(crate) fn dtype(&self, tensor: usize) -> &'a str {
        &self.program.tensors[tensor].dtype
    }

    pub(crate) fn bytes(&self, tensor: usize) -> u64 {
        self.profile.bytes_of(&self.program.tensors[tensor])
    }

    pub(crate) fn strides(&self, tensor: usize) -> &[isize] {
        self.places[tensor].as_ref().map_or(&[], |place| &place.strides)
    }

    pub(crate) fn has_offset(&self, tensor: usize) -> bool {
        self.places[tensor].as_ref().is_some_and(|place| place.offset)
    }

    /// Whether its elements follow each other in row-major order. As in burn-flex, a stride of 0 is never in order.
    pub(crate) fn is_contiguous(&self, tensor: usize) -> bool {
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

    /// Whether it is in order and begins where its block begins.
    pub(crate) fn is_dense(&self, tensor: usize) -> bool {
        self.is_contiguous(tensor) && !self.has_offset(tensor)
    }

    /// Whether it is in order and all that its block holds.
    pub(crate) fn is_exact(&self, tensor: usize) -> bool {
        self.is_dense(tensor) && self.has_all(tensor)
    }

    /// Whether it has every element of its block once, in whatever order.
    pub(crate) fn fills_its_buffer(&self, tensor: usize) -> bool {
        let positive = self.strides(tensor).iter().all(|stride| *stride > 0);
        positive && !self.has_offset(tensor) && self.has_all(tensor)
    }

    fn has_all(&self, tensor: usize) -> bool {
        let block = self.places[tensor].as_ref().map(|place| &self.blocks[place.block]);
        block.is_none_or(|block| block.bytes == self.bytes(tensor))
    }

    /// Whether an operation is the only one to know the block of its input.
    pub(crate) fn is_unique(&self, index: usize, tensor: usize) -> bool {
        let Some(place) = &self.places[tensor] else { return false };
        let op = &self.program.operations[index];
        let mut uses = op.inputs.iter().filter(|input| input.tensor == tensor);
        let last = uses.next().is_some_and(|input| input.last) && uses.next().is_none();
        let others = self.blocks[place.block].tensors.iter().filter(|other| **other != tensor);
        last && others.clone().all(|other| self.ends[*other] < index)
    }
}
