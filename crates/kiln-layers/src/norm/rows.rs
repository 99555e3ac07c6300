//! The arithmetic of layer norm and RMS norm on rows of f32.

use kiln_operations::cpu::stored::Stored;
use kiln_operations::simd;
use kiln_operations::simd::{pair_sums, sums};
use rayon::prelude::*;

use super::NormSettings;

/// Columns of a task that adds rows in their order, and rows that it widens at a time.
pub(crate) const BLOCK: usize = 64;

/// Mean and reciprocal deviation of a row. The mean is 0 if the norm does not subtract it.
#[inline(always)]
fn statistics_of(x: &[f32], settings: NormSettings) -> [f32; 2] {
    let share = 1.0 / x.len() as f32;
    let mean = if settings.centred { sums(x, |x| [x, 0.0])[0] * share } else { 0.0 };
    // The row is in the first-level cache. Reading it again costs less than the rounding of a sum of squares would.
    let variance = sums(x, |x| [(x - mean) * (x - mean), 0.0])[0] * share;
    [mean, 1.0 / (variance + settings.epsilon).sqrt()]
}

#[inline(always)]
fn normalised_row(y: &mut [f32], x: &[f32], statistics: &[f32], weight: &[f32], bias: &[f32]) {
    let (mean, deviation) = (statistics[0], statistics[1]);
    for (((y, &x), &weight), &bias) in y.iter_mut().zip(x).zip(weight).zip(bias) {
        *y = ((x - mean) * deviation).mul_add(weight, bias);
    }
}

simd! { /// The norm of each row, and its statistics.
pub(crate) fn norm_rows(y: &mut [f32], statistics: &mut [f32], x: &[f32], weight: &[f32], bias: &[f32], settings: NormSettings) {
    let width = weight.len();
    for ((y, x), statistics) in y.chunks_exact_mut(width).zip(x.chunks_exact(width)).zip(statistics.chunks_exact_mut(2)) {
        statistics.copy_from_slice(&statistics_of(x, settings));
        normalised_row(y, x, statistics, weight, bias);
    }
}}

simd! { /// The norm of each row from statistics that are known.
pub(crate) fn norm_rows_again(y: &mut [f32], statistics: &[f32], x: &[f32], weight: &[f32], bias: &[f32]) {
    let width = weight.len();
    for ((y, x), statistics) in y.chunks_exact_mut(width).zip(x.chunks_exact(width)).zip(statistics.chunks_exact(2)) {
        normalised_row(y, x, statistics, weight, bias);
    }
}}

simd! { /// Adds the gradients of weight and bias.
pub(crate) fn norm_parameter_gradients(dweight: &mut [f32], dbias: &mut [f32], gradient: &[f32], x: &[f32], statistics: &[f32]) {
    let width = dweight.len();
    for ((gradient, x), statistics) in gradient.chunks_exact(width).zip(x.chunks_exact(width)).zip(statistics.chunks_exact(2)) {
        let (mean, deviation) = (statistics[0], statistics[1]);
        for (((&g, &x), dweight), dbias) in gradient.iter().zip(x).zip(dweight.iter_mut()).zip(dbias.iter_mut()) {
            *dweight = g.mul_add((x - mean) * deviation, *dweight);
            *dbias += g;
        }
    }
}}

simd! { /// Turns the gradients of the output's rows into those of the input's rows.
pub(crate) fn norm_input_gradients(gradient: &mut [f32], x: &[f32], statistics: &[f32], weight: &[f32], settings: NormSettings) {
    let width = weight.len();
    let share = 1.0 / width as f32;
    for ((gradient, x), statistics) in gradient.chunks_exact_mut(width).zip(x.chunks_exact(width)).zip(statistics.chunks_exact(2)) {
        let (mean, deviation) = (statistics[0], statistics[1]);
        gradient.iter_mut().zip(weight).for_each(|(g, weight)| *g *= weight);
        let [sum, product] = pair_sums(gradient, x, |g, x| [g, g * ((x - mean) * deviation)]);
        let (sum, product) = (if settings.centred { sum * share } else { 0.0 }, product * share);
        for (g, &x) in gradient.iter_mut().zip(x) {
            *g = deviation * (*g - sum - (x - mean) * deviation * product);
        }
    }
}}

simd! { /// Adds the gradients of some columns of weight and bias. Rows are as many values apart as the strides say.
fn norm_parameter_gradients_of_columns(dweight: &mut [f32], dbias: &mut [f32], gradient: &[f32], x: &[f32], strides: [usize; 2], statistics: &[f32]) {
    for ((gradient, x), statistics) in gradient.chunks(strides[0]).zip(x.chunks(strides[1])).zip(statistics.chunks_exact(2)) {
        let (mean, deviation) = (statistics[0], statistics[1]);
        for (((&g, &x), dweight), dbias) in gradient.iter().zip(x).zip(dweight.iter_mut()).zip(dbias.iter_mut()) {
            *dweight = g.mul_add((x - mean) * deviation, *dweight);
            *dbias += g;
        }
    }
}}

/// Adds the gradients of weight and bias to their sums, one row after the other. Each task has some columns.
pub(crate) fn add_parameter_gradients<G: Stored, X: Stored>(
    [dweight, dbias]: [&mut [f32]; 2],
    gradient: &[G],
    x: &[X],
    statistics: &[f32],
) {
    let width = dweight.len();
    let columns = dweight.par_chunks_mut(BLOCK).zip(dbias.par_chunks_mut(BLOCK)).enumerate();
    columns.for_each_init(Default::default, |buffers: &mut [Vec<f32>; 4], (index, (dweight, dbias))| {
        let (first, count) = (index * BLOCK, dweight.len());
        let [wide_gradient, wide_x, of_row, of_x] = buffers;
        let rows = gradient.chunks(BLOCK * width).zip(x.chunks(BLOCK * width)).zip(statistics.chunks(2 * BLOCK));
        for ((gradient, x), statistics) in rows {
            let (gradient, stride) = columns_of(gradient, [first, count, width], wide_gradient, of_row);
            let (x, x_stride) = columns_of(x, [first, count, width], wide_x, of_x);
            norm_parameter_gradients_of_columns(dweight, dbias, gradient, x, [stride, x_stride], statistics);
        }
    });
}

/// Some columns of rows in f32, and how many values apart the rows are: where they are, or widened copies in `buffer`.
fn columns_of<'a, E: Stored>(
    rows: &'a [E],
    [first, count, width]: [usize; 3],
    buffer: &'a mut Vec<f32>,
    of_row: &'a mut Vec<f32>,
) -> (&'a [f32], usize) {
    if E::dtype() == burn::tensor::DType::F32 {
        return (E::widened(&rows[first..], buffer), width);
    }
    buffer.clear();
    for row in rows.chunks_exact(width) {
        buffer.extend_from_slice(E::widened(&row[first..first + count], of_row));
    }
    (buffer, count)
}
