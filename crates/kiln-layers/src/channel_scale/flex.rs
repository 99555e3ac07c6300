//! The product of each plane and a number on the CPU: one pass in each direction.
//!
//! Scratch memory: one f32 value for each plane forward, two backward; in 16 bits also as many buffers of a plane for each thread.
//! Multiply-adds for each value: 1 forward, 2 backward. The output is written over the input, and the input's gradient over the output's
//! gradient, if no other handle to them exists.

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use rayon::prelude::*;

use kiln_operations::cpu::stored::{Stored, from_f32, owned, to_f32};
use kiln_operations::simd::pair_sums;
use kiln_operations::{by_dtype, simd};

/// The fewest values of a task.
const TASK: usize = 32 * 1024;

simd! { fn multiply(plane: &mut [f32], factor: f32) {
    plane.iter_mut().for_each(|value| *value *= factor);
}}

simd! {
    /// Multiplies a plane of the gradient by the factor. Returns the sum of the products of gradient and x.
    fn multiply_gradient(gradient: &mut [f32], x: &[f32], factor: f32) -> f32 {
        let [sum, _] = pair_sums(gradient, x, |gradient, x| [gradient * x, 0.0]);
        gradient.iter_mut().for_each(|value| *value *= factor);
        sum
    }
}

/// The number of values of a plane, and the fewest planes of a task.
fn sizes(x: &FlexTensor) -> (usize, usize) {
    let plane = x.shape().iter().skip(2).product::<usize>().max(1);
    (plane, TASK.div_ceil(plane))
}

pub(super) fn forward(x: FlexTensor, scale: &FlexTensor) -> FlexTensor {
    fn run<E: Stored>(x: FlexTensor, scale: &[f32]) -> FlexTensor {
        let ((plane, planes), mut y) = (sizes(&x), owned(x));
        let all = y.storage_mut::<E>().par_chunks_mut(plane).zip(scale).with_min_len(planes);
        all.for_each_init(Vec::new, |buffer, (values, factor)| {
            E::changed(values, buffer, |values| multiply(values, *factor));
        });
        y
    }
    if x.shape().num_elements() == 0 {
        return x;
    }
    by_dtype!(x.dtype(), E => run::<E>(x, &to_f32(scale)), else x)
}

/// The gradients of `x` and `scale`.
pub(super) fn backward(x: &FlexTensor, scale: &FlexTensor, gradient: FlexTensor) -> [FlexTensor; 2] {
    fn run<E: Stored>(x: &FlexTensor, scale: &[f32], gradient: FlexTensor, sums: &mut [f32]) -> FlexTensor {
        let ((plane, planes), x, mut gradient) = (sizes(x), x.to_contiguous(), owned(gradient));
        let inputs = x.storage::<E>().par_chunks(plane).zip(scale).zip(sums);
        let all = gradient.storage_mut::<E>().par_chunks_mut(plane).zip(inputs).with_min_len(planes);
        all.for_each_init(
            || (vec![], vec![]),
            |(wide, buffer), (gradient, ((x, factor), sum))| {
                let x = E::widened(x, wide);
                E::changed(gradient, buffer, |gradient| *sum = multiply_gradient(gradient, x, *factor));
            },
        );
        gradient
    }
    let mut sums = vec![0.0; scale.shape().num_elements()];
    let of_x = match x.shape().num_elements() {
        0 => gradient,
        _ => by_dtype!(x.dtype(), E => run::<E>(x, &to_f32(scale), gradient, &mut sums), else gradient),
    };
    [of_x, from_f32(sums, scale.shape(), scale.dtype())]
}
