//! A custom operation, which burn does not have: its id, its scalars, and the sizes of its tensors.

use burn::tensor::DType;

use crate::trace::{Detail, StepTrace, Use};

use super::super::sizes::Sizes;

/// A custom operation at one batch size.
pub(super) struct Operation<'a> {
    /// The id, such as `kiln::attention`.
    pub(super) id: &'a str,
    pub(super) inputs: &'a [Use],
    pub(super) outputs: &'a [u32],
    scalars: &'a [i64],
    trace: &'a StepTrace,
    sizes: &'a Sizes,
}

impl<'a> Operation<'a> {
    pub(super) fn new(trace: &'a StepTrace, sizes: &'a Sizes, index: usize) -> Self {
        let kind = trace.graph.kind_at(index);
        let scalars = match &kind.detail {
            Detail::Scalars(scalars) => scalars.as_slice(),
            _ => &[],
        };
        let (inputs, outputs) = (trace.graph.inputs_at(index), trace.graph.outputs_at(index));
        Self { id: kind.short(), inputs, outputs, scalars, trace, sizes }
    }

    /// A dimension of an input; 1 if the input does not have it.
    pub(super) fn dim(&self, input: usize, dim: usize) -> u64 {
        self.shape(input).get(dim).map_or(1, |size| *size as u64)
    }

    /// A dimension of an input, counted from the last.
    pub(super) fn dim_from_end(&self, input: usize, dim: usize) -> u64 {
        self.shape(input).iter().rev().nth(dim).map_or(1, |size| *size as u64)
    }

    pub(super) fn elements(&self, input: usize) -> u64 {
        elements(self.shape(input))
    }

    pub(super) fn bytes(&self, input: usize) -> u64 {
        self.inputs.get(input).map_or(0, |input| self.sizes.bytes(input.tensor))
    }

    pub(super) fn out_elements(&self, output: usize) -> u64 {
        self.outputs.get(output).map_or(0, |tensor| elements(self.sizes.shape(*tensor)))
    }

    pub(super) fn out_bytes(&self, output: usize) -> u64 {
        self.outputs.get(output).map_or(0, |tensor| self.sizes.bytes(*tensor))
    }

    /// Whether the first output has 16 bits.
    pub(super) fn is_half(&self) -> bool {
        let dtype = self.outputs.first().map(|output| self.trace.tensors[*output as usize].dtype);
        matches!(dtype, Some(DType::F16 | DType::BF16))
    }

    /// Whether an input has 16 bits.
    pub(super) fn reads_half(&self, input: usize) -> bool {
        let dtype = self.inputs.get(input).map(|input| self.trace.tensors[input.tensor as usize].dtype);
        matches!(dtype, Some(DType::F16 | DType::BF16))
    }

    /// Whether an output has the size and dtype of a tensor.
    pub(super) fn is_like(&self, output: usize, tensor: u32) -> bool {
        let dtype = |tensor: u32| self.trace.tensors[tensor as usize].dtype;
        self.outputs.get(output).is_some_and(|output| {
            dtype(*output) == dtype(tensor) && self.sizes.bytes(*output) == self.sizes.bytes(tensor)
        })
    }

    /// A scalar that is not negative; 0 if it was not recorded.
    pub(super) fn scalar(&self, position: usize) -> u64 {
        self.scalars.get(position).and_then(|value| u64::try_from(*value).ok()).unwrap_or(0)
    }

    fn shape(&self, input: usize) -> &'a [usize] {
        self.inputs.get(input).map_or(&[], |input| self.sizes.shape(input.tensor))
    }
}

fn elements(shape: &[usize]) -> u64 {
    shape.iter().map(|size| *size as u64).product()
}
