//! The memory rules of CubeCL devices: whether each output is a view, written over an input, or new.

use crate::trace::{Detail, Kind};

use super::custom;
use super::flex_site::Site;
use super::memory::{Effect, Memory, Output, Strides};

/// The workspace of an operation, and where its first output is.
///
/// The rules were read from the sources of burn-cubecl 0.22 and have not been checked on a GPU. Outputs are new and in row-major order.
/// Reshapes and permutations are views. Elementwise operations write over an input of the same size that no other tensor uses. Operator
/// fusion, which leaves out intermediate results, and autotuning are not modelled.
pub(super) fn effect(memory: &Memory<'_>, index: usize) -> Effect {
    let graph = &memory.trace.graph;
    let operation = graph.operations[index];
    let (kind, inputs) = (graph.kind(operation), graph.inputs(operation));
    let new = |workspace| Effect::new(Output::New, workspace);
    if kind.is_custom() {
        return custom::on_cube(memory, index);
    }
    let (Some(input), Some(out)) = (inputs.first().map(|input| input.tensor), graph.outputs(operation).first()) else {
        return new(0);
    };
    let view = |strides: Strides| Effect::new(Output::View { of: input, strides, offset: memory.has_offset(input) }, 0);
    match (kind.short(), &kind.detail) {
        ("Reshape", _) if memory.is_contiguous(input) => view(Strides::RowMajor),
        ("SwapDims" | "Permute", Detail::Axes(axes)) => {
            let strides = memory.strides(input);
            view(Strides::Other(axes.iter().filter_map(|axis| strides.get(*axis).copied()).collect()))
        }
        ("Expand", _) => view(Strides::Other(vec![0; memory.shape(*out).len()])),
        ("Cast", _) if memory.dtype(input) == memory.dtype(*out) => view(Strides::Of(input)),
        ("Matmul", _) => match Site::new(memory, index).divided() {
            // The products of all batches exist before they are added up.
            Some([batches, _]) => new(batches as u64 * memory.bytes(*out)),
            None => new(0),
        },
        ("Conv1dWeightBackward" | "Conv2dWeightBackward" | "Conv3dWeightBackward", _) => {
            // The input and the gradient in channels-last order.
            let gradient = inputs.last().map_or(0, |input| memory.bytes(input.tensor));
            new(memory.bytes(input) + gradient)
        }
        // burn's convolutions make gradients of weights in another order than the sum's, so that the sum is a new tensor.
        ("Add", _) if memory.shape(*out).len() > 3 && memory.is_sum_of_gradients(index) => new(0),
        _ if is_elementwise(kind, inputs.len()) => {
            let over = inputs.iter().map(|input| input.tensor).find(|input| {
                memory.bytes(*input) == memory.bytes(*out)
                    && memory.dtype(*input) == memory.dtype(*out)
                    && memory.is_dense(*input)
                    && memory.is_unique(index, *input)
            });
            match over {
                Some(input) => Effect::new(Output::Over(input), 0),
                None => new(0),
            }
        }
        _ => new(0),
    }
}

/// Whether an operation works element by element.
fn is_elementwise(kind: &Kind, inputs: usize) -> bool {
    const ELEMENTWISE: [&str; 18] = [
        "Add",
        "AddScalar",
        "Sub",
        "SubScalar",
        "Mul",
        "MulScalar",
        "Div",
        "DivScalar",
        "Neg",
        "Abs",
        "Clamp",
        "MaskFill",
        "MaskWhere",
        "SliceAssign",
        "SelectAssign",
        "Scatter",
        "Powf",
        "PowfScalar",
    ];
    let unary = kind.family() == "Float" && inputs == 1 && !matches!(kind.short(), "Random" | "IntoInt");
    ELEMENTWISE.contains(&kind.short()) || kind.family() == "Activation" || unary
}
