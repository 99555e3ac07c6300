use crate::profile::BackendProfile;
use crate::program::{Op, Program};

/// Estimated seconds of an operation: what it computes or what it moves, whichever takes longer.
pub(crate) fn seconds(program: &Program, op: &Op, profile: &BackendProfile) -> f64 {
    let moved: u64 = op
        .inputs
        .iter()
        .map(|input| input.tensor)
        .chain(op.outputs.iter().copied())
        .map(|tensor| profile.bytes_of(&program.tensors[tensor]))
        .sum();
    let is_view = matches!(op.kind(), "Reshape" | "SwapDims" | "Permute" | "Expand" | "Slice");
    let moving = if is_view { 0.0 } else { moved as f64 / profile.bandwidth };
    profile.launch + moving.max(work(program, op) / profile.flops)
}

/// Multiplications and additions of an operation that does more than a few for each element.
pub(crate) fn work(program: &Program, op: &Op) -> f64 {
    let shape = |tensor: Option<usize>| tensor.map_or(&[][..], |tensor| &program.tensors[tensor].shape[..]);
    let input = |position: usize| shape(op.inputs.get(position).map(|input| input.tensor));
    let product = |dims: &[usize]| dims.iter().product::<usize>() as f64;
    let out = shape(op.outputs.first().copied());
    match op.kind() {
        "Matmul" => 2.0 * product(out) * input(0).last().copied().unwrap_or(1) as f64,
        // Each output element is a sum over a patch.
        "Conv1d" | "Conv2d" | "Conv3d" => 2.0 * product(out) * product(input(1).get(1..).unwrap_or_default()),
        kind if kind.starts_with("Conv") && (kind.ends_with("XBackward") || kind.ends_with("WeightBackward")) => {
            2.0 * product(input(2)) * product(input(1).get(1..).unwrap_or_default())
        }
        kind if kind.starts_with("ConvTranspose") => {
            2.0 * product(input(0)) * product(input(1).get(1..).unwrap_or_default())
        }
        _ => 0.0,
    }
}
