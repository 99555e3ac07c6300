//! Softmax on the CPU, row by row.
//!
//! Scratch memory: none in f32, otherwise `2 * 4 * max(CHUNK, classes)` bytes for each thread. About 20 operations for each value
//! forward, 4 backward.

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use rayon::prelude::*;

use super::cost::CHUNK;
use kiln_operations::by_dtype;
use kiln_operations::cpu::math::exp;
use kiln_operations::cpu::stored::{Stored, owned, rows, tensor};
use kiln_operations::simd;
use kiln_operations::simd::{LANES, lanes_sum, maximum, pair_sums};

simd! { fn softmax_rows(y: &mut [f32], x: &[f32], classes: usize) {
    for (y, x) in y.chunks_exact_mut(classes).zip(x.chunks_exact(classes)) {
        let largest = maximum(x);
        let mut lanes = [0.0f32; LANES];
        let mut rest = 0.0;
        let whole = classes - classes % LANES;
        for (y, x) in y.chunks_exact_mut(LANES).zip(x.chunks_exact(LANES)) {
            for lane in 0..LANES {
                y[lane] = exp(x[lane] - largest);
                lanes[lane] += y[lane];
            }
        }
        for (y, x) in y[whole..].iter_mut().zip(&x[whole..]) {
            *y = exp(x - largest);
            rest += *y;
        }
        let factor = 1.0 / (lanes_sum(lanes) + rest);
        y.iter_mut().for_each(|y| *y *= factor);
    }
}}

simd! { fn gradient_rows(gradient: &mut [f32], y: &[f32], classes: usize) {
    for (gradient, y) in gradient.chunks_exact_mut(classes).zip(y.chunks_exact(classes)) {
        let [product, _] = pair_sums(gradient, y, |g, y| [g * y, 0.0]);
        gradient.iter_mut().zip(y).for_each(|(g, y)| *g = y * (*g - product));
    }
}}

/// Number of values of a task, which handles whole rows.
fn task(classes: usize) -> usize {
    (CHUNK.div_ceil(classes.max(1)) * classes).max(1)
}

pub(super) fn forward(x: &FlexTensor) -> FlexTensor {
    fn run<E: Stored>(x: &FlexTensor) -> FlexTensor {
        let x = x.to_contiguous();
        let (count, classes) = rows(&x);
        let mut y = vec![E::zeroed(); count * classes];
        y.par_chunks_mut(task(classes)).zip(x.storage::<E>().par_chunks(task(classes))).for_each_init(
            || (vec![], vec![]),
            |(wide, kept), (y, x)| {
                let x = E::widened(x, wide);
                E::written(y, kept, |y| softmax_rows(y, x, classes));
            },
        );
        tensor(y, x.shape())
    }
    by_dtype!(x.dtype(), E => run::<E>(x), else x.clone())
}

/// The gradient of the input. It is written over `gradient` if no other handle to it exists.
pub(super) fn backward(y: &FlexTensor, gradient: FlexTensor) -> FlexTensor {
    fn run<E: Stored>(y: &FlexTensor, gradient: FlexTensor) -> FlexTensor {
        let (_, classes) = rows(y);
        let mut gradient = owned(gradient);
        let chunks = gradient.storage_mut::<E>().par_chunks_mut(task(classes));
        chunks.zip(y.storage::<E>().par_chunks(task(classes))).for_each_init(
            || (vec![], vec![]),
            |(wide, kept), (gradient, y)| {
                let y = E::widened(y, wide);
                E::changed(gradient, kept, |gradient| gradient_rows(gradient, y, classes));
            },
        );
        gradient
    }
    by_dtype!(y.dtype(), E => run::<E>(y, gradient), else gradient)
}
