//! The prologue and the cost of a linear layer.

use crate::activation::Activation;
use crate::norm::NormSettings;
use kiln_operations::{Call, Cost, Cpu, Product, chain_scratch, padded_rows};

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
/// Bytes of a 16-bit weight's gradient that are summed in f32 at a time. For each such part, all inputs are read and the prologue is
/// computed.
pub(super) const GRADIENT: usize = 4 << 20;

/// Inputs: x, weight and bias of the norm, weight, bias. Scalar: 0 without a prologue, 1 with a norm, 2 with an activation.
pub(super) static FORWARD: Cost = Cost {
    any_order: &[3],
    cpu_scratch: |call, cpu| {
        let (weight, rows) = (Stored::of(call, [0, 3]), rows_at_once(call, 3));
        let [inputs, outputs] = of_rows(call, 3, rows);
        let inputs = if weight.in_bf16 && call.scalar(0) == 0 { 0 } else { inputs };
        inputs + outputs + weight.widened(BLOCK as u64) + weight.product(rows, weight.by_rows, cpu)
    },
    gpu_scratch: |call, _| of_prologue(call) + narrowed(call, 3),
    multiply_adds: |call| multiply_adds(call, 3),
    by_sample: true,
    ..Cost::new("kiln::linear")
};

/// Inputs of [`WEIGHT_BACKWARD`], and the sums of the gradients of weight and bias.
pub(super) static WEIGHT_BACKWARD_ONTO: Cost = Cost {
    id: "kiln::linear_weight_backward_onto",
    in_place: &[(6, 0), (7, 1)],
    any_order: &[4, 6],
    same_layout: &[(6, 0)],
    ..WEIGHT_BACKWARD
};

/// Inputs: x, statistics, weight and bias of the norm, weight, gradient. Scalars: that of [`FORWARD`], and 0 for sums over rows in any order.
pub(super) static WEIGHT_BACKWARD: Cost = Cost {
    any_order: &[4],
    same_layout: &[(4, 0)],
    cpu_scratch: |call, cpu| {
        let (mut weight, rows) = (Stored::of(call, [0, 4]), rows_at_once(call, 4));
        weight.half &= call.scalar(1) == 0; // sums in the order of rows are f32
        let lines = weight.lines(GRADIENT as u64 / (4 * weight.columns).max(1));
        let in_bf16 = weight.in_bf16;
        let packed = match call.scalar(1) {
            0 if !in_bf16 => Product { left_rows: false, ..product([lines, rows, weight.columns]) }.packed(cpu),
            _ => chain_scratch([lines, rows, weight.columns], in_bf16, cpu),
        };
        let [inputs, outputs] = of_rows(call, 4, rows);
        let values = match (in_bf16, call.scalar(0)) {
            (true, 0) => 0,
            (true, _) => inputs,
            (false, _) => inputs + outputs,
        };
        values + weight.of_sums(lines) + packed
    },
    gpu_scratch: |call, _| of_prologue(call) + narrowed(call, 4),
    multiply_adds: |call| multiply_adds(call, 4),
    by_sample: true,
    ..Cost::new("kiln::linear_weight_backward")
};

/// Inputs and scalar of [`WEIGHT_BACKWARD`].
pub(super) static INPUT_BACKWARD: Cost = Cost {
    any_order: &[4],
    cpu_scratch: |call, cpu| {
        let (weight, rows) = (Stored::of(call, [0, 4]), rows_at_once(call, 4));
        let product = weight.product(rows, !weight.by_rows, cpu);
        let [inputs, outputs] = of_rows(call, 4, rows);
        inputs
            + if weight.in_bf16 { 0 } else { outputs }
            + weight.widened(BLOCK as u64)
            + product.max(prologue_gradient(call, rows, cpu))
    },
    // An activation's gradient is written over the one that it is computed from.
    gpu_scratch: |call, _| (if call.scalar(0) == 1 { call.bytes(0) } else { 0 }) + narrowed(call, 4),
    multiply_adds: |call| multiply_adds(call, 4),
    by_sample: true,
    ..Cost::new("kiln::linear_input_backward")
};

/// With a prologue, the gradient of the input is written over the input.
pub(super) static PROLOGUE_INPUT_BACKWARD: Cost =
    Cost { id: "kiln::prologue_linear_input_backward", in_place: &[(0, 0)], ..INPUT_BACKWARD };

/// With sums of the gradients of the norm's weight and bias.
pub(super) static PROLOGUE_INPUT_BACKWARD_ONTO: Cost =
    Cost { id: "kiln::prologue_linear_input_backward_onto", in_place: &[(0, 0), (6, 1), (7, 2)], ..INPUT_BACKWARD };

/// Inputs: rows, to which is added, other rows, and the matrix that these are multiplied with. Scalar: 1 if the matrix is transposed.
pub(super) static ADD_PRODUCT: Cost = Cost {
    in_place: &[(0, 0)],
    any_order: &[2],
    cpu_scratch: |call, cpu| {
        let (matrix, half) = (Stored::of(call, [1, 2]), call.reads_half(0));
        let (wide, narrow) = (call.dim_from_end(0, 0), call.dim_from_end(1, 0));
        let all = call.elements(0) / wide.max(1);
        let rows = if half { all.min(ROWS as u64) } else { all };
        let along_rows = matrix.by_rows == (call.scalar(0) == 0);
        let narrow = if matrix.in_bf16 { 0 } else { narrow };
        let widened = if half { 4 * rows * (wide + narrow) } else { 0 };
        widened + matrix.widened(BLOCK as u64) + matrix.product(rows, along_rows, cpu)
    },
    gpu_scratch: |call, _| call.bytes(0) + narrowed(call, 2),
    multiply_adds: |call| call.elements(1) as f64 * call.dim_from_end(0, 0) as f64,
    by_sample: true,
    ..Cost::new("kiln::add_product")
};

/// A weight `[inputs, outputs]` in its memory layout: by rows, or as the rows of its transposed matrix.
struct Stored {
    rows: u64,
    columns: u64,
    by_rows: bool,
    /// Whether it has 16 bits.
    half: bool,
    /// Whether its products are [in bf16](super::values::in_bf16).
    in_bf16: bool,
}

impl Stored {
    fn of(call: &Call<'_>, [x, weight]: [usize; 2]) -> Self {
        let (inputs, outputs) = (call.dim(weight, 0), call.dim(weight, 1));
        let half = call.reads_half(weight);
        let in_bf16 = [x, weight].iter().all(|input| call.reads_bf16(*input));
        let strides = call.inputs.get(weight).map_or(&[][..], |input| input.strides);
        match strides {
            [1, row] if *row != 1 => Self { rows: outputs, columns: inputs, by_rows: false, half, in_bf16 },
            _ => Self { rows: inputs, columns: outputs, by_rows: true, half, in_bf16 },
        }
    }

    /// Stored rows of a block: `lines` of them in 16 bits, all in f32.
    fn lines(&self, lines: u64) -> u64 {
        if self.half { lines.max(1).min(self.rows) } else { self.rows }
    }

    /// Bytes of a block of `lines` stored rows in f32, if it has 16 bits and its products are in f32.
    fn widened(&self, lines: u64) -> u64 {
        if self.in_bf16 { 0 } else { self.of_sums(lines) }
    }

    /// Bytes of the sums of a block of `lines` stored rows of its gradient, if that has 16 bits.
    fn of_sums(&self, lines: u64) -> u64 {
        if self.half { 4 * self.lines(lines) * self.columns } else { 0 }
    }

    /// Bytes of the product of `rows` rows with a block: along its stored rows, whose number is then the depth, or along its columns. In bf16 all
    /// rows are one block.
    fn product(&self, rows: u64, along_rows: bool, cpu: &Cpu) -> u64 {
        let lines = if self.in_bf16 { self.rows } else { self.lines(BLOCK as u64) };
        let (depth, columns) = if along_rows { (lines, self.columns) } else { (self.columns, lines) };
        if self.in_bf16 {
            return chain_scratch([rows, depth, columns], true, cpu);
        }
        let packed = Product { right_rows: along_rows, ..product([rows, depth, columns]) }.packed(cpu);
        packed + padded_rows(rows, columns, depth)
    }
}

/// Rows of the input that are computed at a time.
fn rows_at_once(call: &Call<'_>, weight: usize) -> u64 {
    let rows = call.elements(0) / call.dim(weight, 0).max(1);
    if call.scalar(0) > 0 || call.reads_half(0) { rows.min(ROWS as u64) } else { rows }
}

/// Bytes of `rows` rows in f32, of the input and of the output: with a prologue or in 16 bits those of the input, in 16 bits also those of the
/// output.
fn of_rows(call: &Call<'_>, weight: usize, rows: u64) -> [u64; 2] {
    let (inputs, outputs) = (call.dim(weight, 0), call.dim(weight, 1));
    match (call.reads_half(0), call.scalar(0) > 0) {
        (true, _) => [inputs, outputs].map(|width| 4 * rows * width),
        (false, true) => [4 * rows * inputs, 0],
        (false, false) => [0, 0],
    }
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
