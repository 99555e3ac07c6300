//! The prologue and the cost of a linear layer.

use crate::activation::Activation;
use crate::norm::NormSettings;
use kiln_operations::{Call, Cost, Cpu};

/// The prologue: an operation on the input before the product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Prologue {
    /// No operation.
    None,
    /// A norm over the last dimension.
    Norm(NormSettings),
    /// An activation.
    Activation(Activation),
}

/// Rows of a chunk.
pub(super) const ROWS: usize = 256;
/// Rows of a 16-bit weight that are widened at a time.
pub(super) const BLOCK: usize = 256;

/// Parts of the rows that a weight's gradient is the sum of on CubeCL devices: as many as make several tiles for each multiprocessor of a
/// GPU, if each part has enough rows. The parts of a matrix of 768 x 768 and 8,192 rows take 19 MB.
pub(super) fn parts(rows: usize, inputs: usize, outputs: usize) -> usize {
    const TILE: usize = 128;
    const TILES: usize = 640;
    const ROWS: usize = 1024;
    let tiles = inputs.div_ceil(TILE) * outputs.div_ceil(TILE);
    let mut parts = 1;
    while 2 * parts * tiles <= TILES && rows.is_multiple_of(2 * parts) && rows / (2 * parts) >= ROWS {
        parts *= 2;
    }
    parts
}

/// Inputs: x, weight and bias of the norm, weight, bias. Scalar: 0 without a prologue.
pub(super) static FORWARD: Cost = Cost {
    any_order: &[3],
    cpu_scratch: |call, cpu| scratch(call, 3, 1, cpu),
    gpu_scratch: |call| call.bytes(0),
    multiply_adds: |call| multiply_adds(call, 3),
    ..Cost::new("kiln::linear")
};

/// Inputs: x, statistics, weight and bias of the norm, weight, gradient. Scalar: 0 without a prologue.
pub(super) static WEIGHT_BACKWARD: Cost = Cost {
    any_order: &[4],
    same_layout: &[(4, 0)],
    cpu_scratch: |call, cpu| scratch(call, 4, 1, cpu),
    gpu_scratch: |call| 2 * call.bytes(0) + of_parts(call),
    multiply_adds: |call| multiply_adds(call, 4),
    ..Cost::new("kiln::linear_weight_backward")
};

/// Inputs and scalar of [`WEIGHT_BACKWARD`].
pub(super) static INPUT_BACKWARD: Cost = Cost {
    any_order: &[4],
    cpu_scratch: |call, cpu| scratch(call, 4, 2, cpu),
    gpu_scratch: |call| 2 * call.bytes(0),
    multiply_adds: |call| multiply_adds(call, 4),
    ..Cost::new("kiln::linear_input_backward")
};

/// Bytes of the parts of the weight's gradient.
fn of_parts(call: &Call<'_>) -> u64 {
    let [inputs, outputs] = [call.dim(4, 0), call.dim(4, 1)].map(|size| size as usize);
    match parts(call.elements(0) as usize / inputs.max(1), inputs, outputs) {
        1 => 0,
        parts => call.wide(4, parts as u64),
    }
}

/// With a prologue or in 16 bits: `copies` of the inputs of some rows. In 16 bits also the outputs, and some lines of the weight.
fn scratch(call: &Call<'_>, weight: usize, copies: u64, cpu: &Cpu) -> u64 {
    let (inputs, outputs) = (call.dim(weight, 0), call.dim(weight, 1));
    let rows = call.elements(0) / inputs.max(1);
    let (prologue, half) = (call.scalar(0) > 0, call.reads_half(0));
    let together = if prologue || half { rows.min(ROWS as u64) } else { rows };
    let of_rows = if prologue || half { 4 * (copies * together * inputs) } else { 0 };
    let of_half = if half { 4 * (together * outputs) + 4 * (BLOCK as u64 * inputs.max(outputs)) } else { 0 };
    of_rows + of_half + cpu.packed([together, inputs, outputs], true)
}

/// Rows `[.., inputs]` times a weight `[inputs, outputs]`.
fn multiply_adds(call: &Call<'_>, weight: usize) -> f64 {
    call.elements(0) as f64 * call.dim(weight, 1) as f64
}
