//! The product of kept gradients and the gradient of the loss.

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::tensor::DType;
use rayon::prelude::*;

use super::settings::SCALED as CHUNK;
use kiln_operations::cpu::buffers::{run_with_buffers, widened_buffers};
use kiln_operations::cpu::stored::{Stored, tensor};
use kiln_operations::{by_dtype, simd};

simd! { fn times(values: &mut [f32], factor: f32) {
    values.iter_mut().for_each(|value| *value *= factor);
}}

simd! { fn product(out: &mut [f32], values: &[f32], factor: f32) {
    out.iter_mut().zip(values).for_each(|(out, value)| *out = value * factor);
}}

/// The transposed view of a matrix.
pub(super) fn swapped(matrix: FlexTensor) -> FlexTensor {
    let layout = matrix.layout().transpose(0, 1);
    matrix.with_layout(layout)
}

/// `gradient * factor` in `dtype`. It is written over `gradient` if the dtype is the same and no other handle to it exists.
///
/// `gradient` must fill its memory, directly or transposed.
pub(super) fn scaled(gradient: FlexTensor, factor: &FlexTensor, dtype: DType) -> FlexTensor {
    let factor = factor.to_contiguous().storage::<f32>().first().copied().unwrap_or(1.0);
    let by_rows = gradient.is_contiguous();
    let gradient = if by_rows { gradient } else { swapped(gradient) };
    let scaled = match gradient.dtype() == dtype {
        true if factor == 1.0 => gradient,
        true => by_dtype!(dtype, E => in_place::<E>(gradient, factor), else gradient),
        false => by_dtype!(dtype, E => converted::<E>(&gradient, factor), else gradient),
    };
    if by_rows { scaled } else { swapped(scaled) }
}

fn in_place<E: Stored>(mut gradient: FlexTensor, factor: f32) -> FlexTensor {
    let all = gradient.shape().num_elements();
    let buffers = || widened_buffers::<E, 1>(CHUNK.min(all));
    let chunks = gradient.storage_mut::<E>().par_chunks_mut(CHUNK);
    run_with_buffers(chunks, all.div_ceil(CHUNK), buffers, |[buffer], values| {
        E::changed(values, buffer, |values| times(values, factor));
    });
    gradient
}

fn converted<E: Stored>(gradient: &FlexTensor, factor: f32) -> FlexTensor {
    let values = gradient.storage::<f32>();
    let mut out = vec![E::zeroed(); values.len()];
    let buffers = || widened_buffers::<E, 1>(CHUNK.min(values.len()));
    let chunks = out.par_chunks_mut(CHUNK).zip(values.par_chunks(CHUNK));
    run_with_buffers(chunks, values.len().div_ceil(CHUNK), buffers, |[buffer], (out, values)| {
        E::written(out, buffer, |out| product(out, values, factor));
    });
    tensor(out, gradient.shape())
}
