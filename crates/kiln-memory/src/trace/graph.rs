//! Operations over numbered tensors, stored in flat tables so that a graph is cheap to copy and to walk.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Operations in the order in which they run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Graph {
    pub(crate) operations: Vec<Operation>,
    /// The distinct operations: each entry of `operations` refers to one of them.
    pub(crate) kinds: Vec<Kind>,
    /// The inputs of all operations; each operation refers to a range.
    uses: Vec<Use>,
    /// The outputs of all operations; each operation refers to a range.
    outputs: Vec<u32>,
}

/// One operation of burn's intermediate representation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Operation {
    /// Index into [`Graph::kinds`].
    pub(crate) kind: u32,
    inputs: Span,
    outputs: Span,
}

/// A range of one of the tables of a [`Graph`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Span {
    start: u32,
    end: u32,
}

/// Name and attributes of an operation, without its tensors.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Kind {
    /// burn's names, outermost first: `Module.Conv2d`, `NumericFloat.Add`. A custom operation has its id: `Custom.kiln::attention`.
    pub(crate) name: String,
    pub(crate) detail: Detail,
}

/// Attributes of an operation that the shapes of its inputs and outputs do not determine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Detail {
    #[default]
    None,
    /// The dimensions of a permutation, a reduction, or a concatenation.
    Axes(Vec<usize>),
    /// Whether a slice starts at an offset, and its steps.
    Slice { offset: bool, steps: Vec<isize> },
    /// A convolution in any number of dimensions. `padding` is the sum of both sides.
    Conv { stride: Vec<usize>, padding: Vec<usize>, dilation: Vec<usize>, groups: usize },
    /// The integers and flags of a custom operation, in the order in which they were recorded.
    Scalars(Vec<i64>),
}

/// A tensor that an operation reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Use {
    pub(crate) tensor: u32,
    /// Whether no other handle to the tensor exists. The operation may then write over the tensor, and it is dropped afterwards.
    pub(crate) last: bool,
}

impl Kind {
    /// The name up to the dot: `Module`.
    pub(crate) fn family(&self) -> &str {
        self.name.split('.').next().unwrap_or_default()
    }

    /// The name after the dot: `Conv2d`, `kiln::attention`. The whole name if there is no dot.
    pub(crate) fn short(&self) -> &str {
        self.name.split_once('.').map_or(self.name.as_str(), |(_, short)| short)
    }

    /// Whether it is a custom operation, which burn does not have.
    pub(crate) fn is_custom(&self) -> bool {
        self.family() == "Custom"
    }
}

impl Span {
    fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

impl Graph {
    /// Stores the tensors of an operation and returns it. The caller adds it to the operations.
    pub(crate) fn operation(
        &mut self,
        kind: u32,
        inputs: impl IntoIterator<Item = Use>,
        outputs: impl IntoIterator<Item = u32>,
    ) -> Operation {
        let start = self.uses.len() as u32;
        self.uses.extend(inputs);
        let inputs = Span { start, end: self.uses.len() as u32 };
        let start = self.outputs.len() as u32;
        self.outputs.extend(outputs);
        let outputs = Span { start, end: self.outputs.len() as u32 };
        Operation { kind, inputs, outputs }
    }

    /// Frees the room for more operations.
    pub(crate) fn shrink(&mut self) {
        self.operations.shrink_to_fit();
        self.uses.shrink_to_fit();
        self.outputs.shrink_to_fit();
    }

    /// The index of a kind. A new kind is added.
    pub(crate) fn kind_index(&mut self, name: &str) -> u32 {
        let known = self.kinds.iter().position(|kind| kind.name == name && kind.detail == Detail::None);
        known.unwrap_or_else(|| {
            self.kinds.push(Kind { name: name.to_owned(), detail: Detail::None });
            self.kinds.len() - 1
        }) as u32
    }

    pub(crate) fn kind(&self, operation: Operation) -> &Kind {
        &self.kinds[operation.kind as usize]
    }

    pub(crate) fn inputs(&self, operation: Operation) -> &[Use] {
        &self.uses[operation.inputs.range()]
    }

    pub(crate) fn inputs_mut(&mut self, operation: Operation) -> &mut [Use] {
        &mut self.uses[operation.inputs.range()]
    }

    pub(crate) fn outputs(&self, operation: Operation) -> &[u32] {
        &self.outputs[operation.outputs.range()]
    }

    /// Name and attributes of the operation at an index.
    pub(crate) fn kind_at(&self, index: usize) -> &Kind {
        self.kind(self.operations[index])
    }

    pub(crate) fn inputs_at(&self, index: usize) -> &[Use] {
        self.inputs(self.operations[index])
    }

    pub(crate) fn outputs_at(&self, index: usize) -> &[u32] {
        self.outputs(self.operations[index])
    }

    /// Whether the operations at `index` of two graphs are the same, over the same tensors.
    pub(crate) fn same_at(&self, other: &Self, index: usize) -> bool {
        match (self.operations.get(index), other.operations.get(index)) {
            (Some(a), Some(b)) => {
                self.kind(*a) == other.kind(*b)
                    && self.inputs(*a) == other.inputs(*b)
                    && self.outputs(*a) == other.outputs(*b)
            }
            _ => false,
        }
    }
}
