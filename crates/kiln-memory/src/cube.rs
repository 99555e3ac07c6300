//! What CubeCL devices do with memory, as far as it can be said from the sources of burn-cubecl 0.11: outputs are new, in
//! row-major order; reshapes and permutations are views; simple operations write over an input of the same size that nobody
//! else uses. Fusion, which leaves intermediate results out, and autotuning are not modelled.

use crate::layout::{Effect, Machine, Output, row_major};
use crate::program::{Detail, Op};

pub(crate) fn effect(machine: &Machine<'_>, index: usize, op: &Op) -> Effect {
    let new = || Effect { outputs: op.outputs.iter().map(|_| Output::New).collect(), workspace: 0 };
    let (Some(input), Some(out)) = (op.inputs.first().map(|input| input.tensor), op.outputs.first()) else {
        return new();
    };
    let strides = machine.strides(input);
    let view = |strides: Vec<isize>| Effect {
        outputs: vec![Output::View { of: input, strides, offset: machine.has_offset(input) }],
        workspace: 0,
    };
    match (op.kind(), &op.detail) {
        ("Reshape", _) if machine.is_contiguous(input) => view(row_major(machine.shape(*out))),
        ("SwapDims" | "Permute", Detail::Axes(axes)) => {
            view(axes.iter().filter_map(|axis| strides.get(*axis).copied()).collect())
        }
        ("Expand", _) => view(vec![0; machine.shape(*out).len()]),
        ("Cast", _) if machine.dtype(input) == machine.dtype(*out) => view(strides.to_vec()),
        ("Conv1dWeightBackward" | "Conv2dWeightBackward" | "Conv3dWeightBackward", _) => {
            // Input and gradient in channels-last order.
            let gradient = op.inputs.last().map_or(0, |input| machine.bytes(input.tensor));
            Effect { workspace: machine.bytes(input) + gradient, ..new() }
        }
        _ if is_simple(op) => {
            let mut inputs = op.inputs.iter().map(|input| input.tensor);
            let over = inputs.find(|input| {
                machine.bytes(*input) == machine.bytes(*out)
                    && machine.dtype(*input) == machine.dtype(*out)
                    && machine.is_dense(*input)
                    && machine.is_unique(index, *input)
            });
            match over {
                Some(input) => Effect { outputs: vec![Output::Over(input)], workspace: 0 },
                None => new(),
            }
        }
        _ => new(),
    }
}

/// Whether an operation works element by element.
fn is_simple(op: &Op) -> bool {
    const SIMPLE: [&str; 18] = [
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
    let family = op.name.split('.').next().unwrap_or_default();
    let unary = family == "Float" && op.inputs.len() == 1 && !matches!(op.kind(), "Random" | "IntoInt");
    SIMPLE.contains(&op.kind()) || family == "Activation" || unary
}
