//! Linear layers on the CPU, some rows at a time. The prologue's output exists only for these rows.
//!
//! Scratch memory in bytes, with `R = min(rows, 256)`: `4 R inputs` with a prologue or if `x` has 16 bits, and `4 R outputs` if `x` has
//! 16 bits. Where input and weight are bf16, what is multiplied has no copy in f32 but the prologue's output. Otherwise, if the weight has 16 bits, also `min(4 * 256 * columns, size of the weight in f32)` (columns: the length of a stored row of
//! the weight), or for its gradient `min(4 MiB, size of the weight in f32)`. Multiply-adds: `rows * inputs * outputs` for each of the
//! output, the gradient of the weight and the gradient of the input. The prologue is computed once for the output, and once for each 4
//! MiB of a 16-bit weight's gradient or once for all of an f32 weight's gradient. Its own gradient is computed once.

use std::ops::Range;

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::tensor::{DType, Shape};
use rayon::prelude::*;

use super::Prologue;
use super::prologue::{Rows, Statistics};
use super::settings::ROWS;
use super::values::{changed, in_bf16, of_product, written};
use super::weight::Weight;
use crate::order::Order;
use kiln_operations::cpu::factor::Values;
use kiln_operations::cpu::stored::{from_f32, owned, tensor, to_f32, zeros};

/// Columns of a task that sums the rows of a gradient.
const COLUMNS: usize = 64;

/// The order in which the gradients of two parameters are summed over rows, and the sums that they are added to if there are any.
pub(super) type Sums = (Order, Option<[FlexTensor; 2]>);

/// The chunks of `count` rows. All rows are one chunk if nothing is converted or computed again.
fn chunks(count: usize, x: &FlexTensor, prologue: Prologue) -> impl Iterator<Item = Range<usize>> + use<> {
    let whole = prologue == Prologue::None && x.dtype() == DType::F32;
    let size = if whole { count.max(1) } else { ROWS };
    (0..count).step_by(size).map(move |first| first..(first + size).min(count))
}

/// The number of rows of an input, and their length.
fn sizes(x: &FlexTensor) -> (usize, usize) {
    let shape = x.shape();
    let (width, others) = shape.split_last().map_or((1, &[][..]), |(width, others)| (*width, others));
    (others.iter().product(), width)
}

/// The range of the values of some rows.
fn values(rows: &Range<usize>, width: usize) -> Range<usize> {
    rows.start * width..rows.end * width
}

/// The output, and the statistics of the input's rows if the prologue is a norm.
pub(super) fn forward(
    x: &FlexTensor,
    [norm_weight, norm_bias]: [&FlexTensor; 2],
    weight: &FlexTensor,
    bias: &FlexTensor,
    prologue: Prologue,
) -> [FlexTensor; 2] {
    let in_bf16 = in_bf16(x, weight);
    let (x, weight, bias) = (x.to_contiguous(), Weight::new(weight), to_f32(bias));
    let (rows, (count, width), outputs) = (Rows::new(prologue, norm_weight, norm_bias), sizes(&x), weight.outputs());
    let mut shape = x.shape();
    let last = shape.num_dims() - 1;
    shape[last] = outputs;
    let mut y = zeros(shape, x.dtype());
    let mut statistics = vec![0.0f32; rows.statistics(count)];
    let (mut result, mut wide_y, mut wide_weight) = (vec![], vec![], vec![]);
    for chunk in chunks(count, &x, prologue) {
        let of_chunk = rows.statistics(chunk.start)..rows.statistics(chunk.end);
        let unknown = Statistics::Unknown(&mut statistics[of_chunk]);
        let result = rows.compute((&x, in_bf16), chunk.clone(), width, unknown, &mut result);
        written(&mut y, values(&chunk, outputs), &mut wide_y, |y| {
            match bias.is_empty() {
                true => y.fill(0.0),
                false => y.par_chunks_mut(outputs).for_each(|row| row.copy_from_slice(&bias)),
            }
            weight.add_product(y, result, &mut wide_weight);
        });
    }
    let shape = Shape::new([statistics.len() / 2, 2]);
    [y, tensor(statistics, shape)]
}

/// The gradients of weight and bias.
pub(super) fn weight_gradient(
    x: &FlexTensor,
    statistics: &FlexTensor,
    [norm_weight, norm_bias]: [&FlexTensor; 2],
    weight: &FlexTensor,
    gradient: &FlexTensor,
    prologue: Prologue,
    (order, sums): Sums,
) -> [FlexTensor; 2] {
    let in_bf16 = in_bf16(x, weight);
    let (x, gradient, statistics) = (x.to_contiguous(), gradient.to_contiguous(), to_f32(statistics));
    let (rows, (count, width)) = (Rows::new(prologue, norm_weight, norm_bias), sizes(&x));
    let dtype = order.dtype(weight.dtype());
    let (mut dweight, mut dbias) = match sums {
        Some([weight, bias]) => (Weight::of_sum(weight), to_f32(&bias)),
        None => (Weight::new(weight).zeros_like(dtype), vec![0.0; weight.shape()[1]]),
    };
    let outputs = dweight.outputs();
    let (mut result, mut wide_gradient) = (vec![], vec![]);
    if weight.shape().num_elements() == 0 {
        // Without outputs, no product would visit the rows.
        for chunk in chunks(count, &x, prologue).filter(|_| outputs > 0) {
            add_rows(&mut dbias, of_product(&gradient, values(&chunk, outputs), in_bf16, &mut wide_gradient));
        }
        return [dweight.into_tensor(), from_f32(dbias, Shape::new([outputs]), dtype)];
    }
    dweight.add_gradient(order, &mut vec![], |first, add| {
        for chunk in chunks(count, &x, prologue) {
            let known = Statistics::Known(&statistics[rows.statistics(chunk.start)..rows.statistics(chunk.end)]);
            let result = rows.compute((&x, in_bf16), chunk.clone(), width, known, &mut result);
            let gradient = of_product(&gradient, values(&chunk, outputs), in_bf16, &mut wide_gradient);
            add(result, gradient);
            if first {
                add_rows(&mut dbias, gradient);
            }
        }
    });
    [dweight.into_tensor(), from_f32(dbias, Shape::new([outputs]), dtype)]
}

/// Adds all rows to `sums`.
fn add_rows(sums: &mut [f32], rows: Values<'_>) {
    fn add<T: Sync>(sums: &mut [f32], rows: &[T], wide: impl Fn(&T) -> f32 + Sync) {
        let width = sums.len();
        sums.par_chunks_mut(COLUMNS).enumerate().for_each(|(index, sums)| {
            for row in rows.chunks_exact(width) {
                sums.iter_mut().zip(&row[index * COLUMNS..]).for_each(|(sum, value)| *sum += wide(value));
            }
        });
    }
    match rows {
        Values::F32(rows) | Values::Rounded(rows) => add(sums, rows, |value| *value),
        Values::Bf16(rows) => add(sums, rows, |value| f32::from_bits(u32::from(value.to_bits()) << 16)),
    }
}

/// The gradients of the input and of the norm's weight and bias. The input's gradient is written over the input if no other handle to it
/// exists.
pub(super) fn input_gradient(
    x: FlexTensor,
    statistics: &FlexTensor,
    [norm_weight, norm_bias]: [&FlexTensor; 2],
    weight: &FlexTensor,
    gradient: &FlexTensor,
    prologue: Prologue,
    (order, sums): Sums,
) -> [FlexTensor; 3] {
    let plain = prologue == Prologue::None;
    let in_bf16 = in_bf16(&x, weight);
    let mut dx = if plain { zeros(x.shape(), x.dtype()) } else { owned(x) };
    let (gradient, statistics, weight) = (gradient.to_contiguous(), to_f32(statistics), Weight::new(weight));
    let (rows, (count, width), outputs) = (Rows::new(prologue, norm_weight, norm_bias), sizes(&dx), weight.outputs());
    let mut sums = match sums {
        Some(sums) => sums.each_ref().map(to_f32),
        None => [(); 2].map(|()| vec![0.0f32; norm_weight.shape()[0]]),
    };
    let (mut result, mut wide_gradient, mut wide_weight) = (vec![], vec![], vec![]);
    for chunk in chunks(count, &dx, prologue) {
        let gradient = of_product(&gradient, values(&chunk, outputs), in_bf16, &mut wide_gradient);
        let mut product = |out: &mut [f32]| {
            out.fill(0.0);
            weight.add_input_gradient(out, gradient, &mut wide_weight);
        };
        if plain {
            written(&mut dx, values(&chunk, width), &mut result, product);
            continue;
        }
        result.resize(chunk.len() * width, 0.0);
        product(&mut result);
        let statistics = &statistics[rows.statistics(chunk.start)..rows.statistics(chunk.end)];
        rows.backward(&mut dx, chunk, width, statistics, &mut result, (&mut sums, order));
    }
    let dtype = order.dtype(norm_weight.dtype());
    let [dweight, dbias] = sums.map(|sums| from_f32(sums, norm_weight.shape(), dtype));
    [dx, dweight, dbias]
}

/// The rows `y`, to which the product of the rows `x` with a matrix or its transposed matrix is added, in their memory if no other handle to
/// them exists.
pub(super) fn add_product(y: FlexTensor, x: &FlexTensor, matrix: &FlexTensor, transposed: bool) -> FlexTensor {
    let in_bf16 = in_bf16(x, matrix);
    let (mut y, x, matrix) = (owned(y), x.to_contiguous(), Weight::new(matrix));
    let ((count, width), (_, narrow)) = (sizes(&y), sizes(&x));
    let (mut wide_y, mut wide_x, mut wide_matrix) = (vec![], vec![], vec![]);
    for chunk in chunks(count, &y, Prologue::None) {
        let x = of_product(&x, values(&chunk, narrow), in_bf16, &mut wide_x);
        changed(&mut y, values(&chunk, width), &mut wide_y, |y| match transposed {
            false => matrix.add_product(y, x, &mut wide_matrix),
            true => matrix.add_input_gradient(y, x, &mut wide_matrix),
        });
    }
    y
}
