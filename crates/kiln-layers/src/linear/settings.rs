//! The prologue and the cost of a linear layer.

use crate::activation::Activation;
use crate::norm::NormSettings;
use kiln_operations::{Call, Cost, Cpu, Product, padded_rows};

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
/// Rows of a chunk that a thread takes at a time, for the prologue.
pub(super) const TASK: usize = 16;
/// Rows of a 16-bit weight that are widened at a time.
pub(super) const BLOCK: usize = 256;

/// Inputs: x, weight and bias of the norm, weight, bias. Scalar: 0 without a prologue, 1 with a norm, 2 with an activation.
pub(super) static FORWARD: Cost = Cost {
    any_order: &[3],
    cpu_scratch: |call, cpu| {
        scratch(call, 3, |rows, [inputs, outputs]| {
            product([rows, inputs, outputs]).packed(cpu) + padded_rows(rows, outputs, inputs)
        })
    },
    gpu_scratch: |call| of_prologue(call) + narrowed(call, 3),
    multiply_adds: |call| multiply_adds(call, 3),
    ..Cost::new("kiln::linear")
};

/// Inputs: x, statistics, weight and bias of the norm, weight, gradient. Scalar of [`FORWARD`].
pub(super) static WEIGHT_BACKWARD: Cost = Cost {
    any_order: &[4],
    same_layout: &[(4, 0)],
    cpu_scratch: |call, cpu| {
        scratch(call, 4, |rows, [inputs, outputs]| {
            Product { left_rows: false, ..product([inputs, rows, outputs]) }.packed(cpu)
        })
    },
    gpu_scratch: |call| of_prologue(call) + narrowed(call, 4),
    multiply_adds: |call| multiply_adds(call, 4),
    ..Cost::new("kiln::linear_weight_backward")
};

/// Inputs and scalar of [`WEIGHT_BACKWARD`].
pub(super) static INPUT_BACKWARD: Cost = Cost {
    any_order: &[4],
    cpu_scratch: |call, cpu| {
        scratch(call, 4, |rows, [inputs, outputs]| {
            let packed = Product { right_rows: false, ..product([rows, outputs, inputs]) }.packed(cpu);
            (packed + padded_rows(rows, inputs, outputs)).max(prologue_gradient(call, rows, cpu))
        })
    },
    // An activation's gradient is written over the one that it is computed from.
    gpu_scratch: |call| (if call.scalar(0) == 1 { call.bytes(0) } else { 0 }) + narrowed(call, 4),
    multiply_adds: |call| multiply_adds(call, 4),
    ..Cost::new("kiln::linear_input_backward")
};

/// With a prologue, the gradient of the input is written over the input.
pub(super) static PROLOGUE_INPUT_BACKWARD: Cost =
    Cost { id: "kiln::prologue_linear_input_backward", in_place: &[(0, 0)], ..INPUT_BACKWARD };

/// With a prologue or in 16 bits: the inputs of some rows. In 16 bits also the outputs, and some lines of the weight. `of_rows`: the bytes
/// of the work on these rows, from their number, inputs and outputs.
fn scratch(call: &Call<'_>, weight: usize, of_rows: impl Fn(u64, [u64; 2]) -> u64) -> u64 {
    let (inputs, outputs) = (call.dim(weight, 0), call.dim(weight, 1));
    let rows = call.elements(0) / inputs.max(1);
    let (prologue, half) = (call.scalar(0) > 0, call.reads_half(0));
    let together = if prologue || half { rows.min(ROWS as u64) } else { rows };
    let of_inputs = if prologue || half { 4 * together * inputs } else { 0 };
    let of_half = if half { 4 * (together * outputs) + 4 * (BLOCK as u64 * inputs.max(outputs)) } else { 0 };
    of_inputs + of_half + of_rows(together, [inputs, outputs])
}

/// A product of matrices whose rows are without gaps.
fn product(sizes: [u64; 3]) -> Product {
    let [m, k, n] = sizes.map(|size| usize::try_from(size).unwrap_or(usize::MAX));
    Product { m, k, n, left_rows: true, right_rows: true, half: false }
}

/// Bytes of the gradient of a prologue for `rows` rows on the CPU: the sums of each task for the parameters of a norm, and in 16 bits the
/// input and its gradient in f32.
fn prologue_gradient(call: &Call<'_>, rows: u64, cpu: &Cpu) -> u64 {
    let (width, tasks) = (call.dim(4, 0), rows.div_ceil(TASK as u64));
    match call.scalar(0) {
        0 => 0,
        1 => 4 * tasks * 2 * width + call.widened(tasks, 2 * TASK as u64 * width, cpu),
        _ => call.widened(tasks, 2 * TASK as u64 * width, cpu),
    }
}

/// Bytes of the prologue's output on a GPU.
fn of_prologue(call: &Call<'_>) -> u64 {
    if call.scalar(0) > 0 { call.bytes(0) } else { 0 }
}

/// Bytes of a weight, or of its gradient, in the dtype of x, if it has another one.
fn narrowed(call: &Call<'_>, weight: usize) -> u64 {
    let dtype = |input: usize| call.inputs.get(input).map(|input| input.dtype);
    let size = dtype(0).map_or(0, |dtype| dtype.size() as u64);
    if dtype(0) == dtype(weight) { 0 } else { size * call.elements(weight) }
}

/// Rows `[.., inputs]` times a weight `[inputs, outputs]`.
fn multiply_adds(call: &Call<'_>, weight: usize) -> f64 {
    call.elements(0) as f64 * call.dim(weight, 1) as f64
}
