//! Activations on the CPU: one pass in each direction, over chunks that stay in the cache.
//!
//! Scratch memory: none in f32, otherwise `2 * 4 * CHUNK` bytes for each thread. About 25 operations for each value in each direction;
//! ReLU 1.

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use rayon::prelude::*;

use super::Activation;
use super::settings::CHUNK;
use kiln_operations::cpu::buffers::{run_with_buffers, widened_buffers};
use kiln_operations::cpu::math::{normal_cdf, sigmoid};
use kiln_operations::cpu::stored::{Stored, owned, tensor};
use kiln_operations::{by_dtype, simd};

/// 2 sqrt(2 / pi), of the tanh approximation: gelu(x) = x sigmoid(SCALE (x + CUBIC x³)).
const SCALE: f32 = 1.595_769_2;
const CUBIC: f32 = 0.044_715;
/// From this magnitude on, the sigmoid of the tanh approximation is exactly 0 or 1.
const SATURATED: f32 = 50.0;
/// 1 / sqrt(2 pi).
const DENSITY: f32 = 0.398_942_3;

/// The factor of x in the tanh approximation, and the slope of its argument.
#[inline(always)]
fn tanh_gate(x: f32) -> (f32, f32) {
    let x = x.clamp(-SATURATED, SATURATED);
    let gate = sigmoid(SCALE * (CUBIC * x * x).mul_add(x, x));
    (gate, SCALE * (3.0 * CUBIC * x).mul_add(x, 1.0))
}

simd! { /// The activation of each value.
pub(crate) fn activate(out: &mut [f32], x: &[f32], activation: Activation) {
    match activation {
        Activation::Gelu => out.iter_mut().zip(x).for_each(|(y, &x)| *y = x * normal_cdf(x).0),
        Activation::GeluTanh => {
            out.iter_mut().zip(x).for_each(|(y, &x)| *y = x * tanh_gate(x).0);
        }
        Activation::Silu => out.iter_mut().zip(x).for_each(|(y, &x)| *y = x * sigmoid(x)),
        Activation::Relu => out.iter_mut().zip(x).for_each(|(y, &x)| *y = if x <= 0.0 { 0.0 } else { x }),
    }
}}

simd! { /// Turns the gradient of each output into that of the input. `x`: what the activation keeps, or its input.
pub(crate) fn activation_gradient(gradient: &mut [f32], x: &[f32], activation: Activation) {
    match activation {
        Activation::Gelu => gradient.iter_mut().zip(x).for_each(|(g, &x)| {
            let (cdf, density) = normal_cdf(x);
            *g *= (DENSITY * x).mul_add(density, cdf);
        }),
        Activation::GeluTanh => gradient.iter_mut().zip(x).for_each(|(g, &x)| {
            let (s, inner) = tanh_gate(x);
            *g *= (x * s * (1.0 - s)).mul_add(inner, s);
        }),
        Activation::Silu => gradient.iter_mut().zip(x).for_each(|(g, &x)| {
            let s = sigmoid(x);
            *g *= (x * (1.0 - s)).mul_add(s, s);
        }),
        // The output of ReLU is positive where its input is. NaN stays NaN both ways.
        Activation::Relu => gradient.iter_mut().zip(x).for_each(|(g, &y)| *g = if y <= 0.0 { 0.0 } else { *g }),
    }
}}

/// Buffers for a chunk of `x` and for one of the output.
fn buffers<E: Stored>(x: &FlexTensor) -> [Vec<f32>; 2] {
    widened_buffers::<E, 2>(CHUNK.min(x.shape().num_elements()))
}

pub(super) fn forward(x: &FlexTensor, activation: Activation) -> FlexTensor {
    fn run<E: Stored>(x: &FlexTensor, activation: Activation) -> FlexTensor {
        let x = x.to_contiguous();
        let mut out = vec![E::zeroed(); x.shape().num_elements()];
        let count = out.len().div_ceil(CHUNK);
        let chunks = out.par_chunks_mut(CHUNK).zip(x.storage::<E>().par_chunks(CHUNK));
        run_with_buffers(
            chunks,
            count,
            || buffers::<E>(&x),
            |[wide, kept], (out, x)| {
                let x = E::widened(x, wide);
                E::written(out, kept, |out| activate(out, x, activation));
            },
        );
        tensor(out, x.shape())
    }
    by_dtype!(x.dtype(), E => run::<E>(x, activation), else x.clone())
}

/// The gradient of the input, written over `gradient` if no other handle to it exists. `x` is the tensor that the activation keeps.
pub(super) fn backward(x: &FlexTensor, gradient: FlexTensor, activation: Activation) -> FlexTensor {
    fn run<E: Stored>(x: &FlexTensor, gradient: FlexTensor, activation: Activation) -> FlexTensor {
        let x = x.to_contiguous();
        let mut gradient = owned(gradient);
        let count = x.shape().num_elements().div_ceil(CHUNK);
        let chunks = gradient.storage_mut::<E>().par_chunks_mut(CHUNK).zip(x.storage::<E>().par_chunks(CHUNK));
        run_with_buffers(
            chunks,
            count,
            || buffers::<E>(&x),
            |[wide, kept], (gradient, x)| {
                let x = E::widened(x, wide);
                E::changed(gradient, kept, |gradient| activation_gradient(gradient, x, activation));
            },
        );
        gradient
    }
    by_dtype!(x.dtype(), E => run::<E>(x, gradient, activation), else gradient)
}
