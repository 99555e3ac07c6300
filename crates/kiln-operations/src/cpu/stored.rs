//! Conversions of values that are kept in the tensor's type and computed in f32.

use std::ops::Range;

use burn::backend::TensorMetadata;
use burn::backend::flex::{FlexTensor, Layout};
use burn::tensor::{Bytes, DType, Element, Shape};
use bytemuck::Zeroable;
use half::slice::HalfFloatSliceExt;
pub use half::{bf16, f16};
use rayon::prelude::*;

use crate::simd;

/// A type of floating-point values that tensors keep.
pub trait Stored: Element + bytemuck::Pod + Send + Sync {
    /// The values as f32: the values themselves, or widened copies in `buffer`.
    fn widened<'a>(values: &'a [Self], buffer: &'a mut Vec<f32>) -> &'a [f32];

    /// Calls `compute` to write f32 values, in place or through `buffer`, and keeps them in `out`. The values that `compute` finds have
    /// no meaning.
    fn written(out: &mut [Self], buffer: &mut Vec<f32>, compute: impl FnOnce(&mut [f32]));

    /// Calls `compute` with the values as f32, to change them.
    fn changed(values: &mut [Self], buffer: &mut Vec<f32>, compute: impl FnOnce(&mut [f32]));
}

impl Stored for f32 {
    fn widened<'a>(values: &'a [Self], _buffer: &'a mut Vec<f32>) -> &'a [f32] {
        values
    }

    fn written(out: &mut [Self], _buffer: &mut Vec<f32>, compute: impl FnOnce(&mut [f32])) {
        compute(out);
    }

    fn changed(values: &mut [Self], _buffer: &mut Vec<f32>, compute: impl FnOnce(&mut [f32])) {
        compute(values);
    }
}

fn widen_f16(out: &mut [f32], values: &[f16]) {
    values.convert_to_f32_slice(out);
}

fn narrow_f16(out: &mut [f16], values: &[f32]) {
    out.convert_from_f32_slice(values);
}

fn widen_bf16(out: &mut [f32], values: &[bf16]) {
    bf16_bits_to_f32(out, bytemuck::cast_slice(values));
}

fn narrow_bf16(out: &mut [bf16], values: &[f32]) {
    f32_to_bf16_bits(bytemuck::cast_slice_mut(out), values);
}

simd! { fn bf16_bits_to_f32(out: &mut [f32], values: &[u16]) {
    out.iter_mut().zip(values).for_each(|(out, bits)| *out = f32::from_bits(u32::from(*bits) << 16));
}}

simd! {
    /// Rounds to the nearest bf16 number, and to even if two are equally near. NaN stays NaN.
    fn f32_to_bf16_bits(out: &mut [u16], values: &[f32]) {
        for (out, value) in out.iter_mut().zip(values) {
            let bits = value.to_bits();
            let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1));
            *out = (if value.is_nan() { bits | 0x0040_0000 } else { rounded } >> 16) as u16;
        }
    }
}

macro_rules! sixteen_bits {
    ($($type:ty, $widen:ident, $narrow:ident;)*) => {$(
        impl Stored for $type {
            fn widened<'a>(values: &'a [Self], buffer: &'a mut Vec<f32>) -> &'a [f32] {
                buffer.resize(values.len(), 0.0);
                $widen(buffer, values);
                buffer
            }

            fn written(out: &mut [Self], buffer: &mut Vec<f32>, compute: impl FnOnce(&mut [f32])) {
                buffer.resize(out.len(), 0.0);
                compute(buffer);
                $narrow(out, buffer);
            }

            fn changed(values: &mut [Self], buffer: &mut Vec<f32>, compute: impl FnOnce(&mut [f32])) {
                buffer.resize(values.len(), 0.0);
                $widen(buffer, values);
                compute(buffer);
                $narrow(values, buffer);
            }
        }
    )*};
}
sixteen_bits! {
    f16, widen_f16, narrow_f16;
    bf16, widen_bf16, narrow_bf16;
}

/// Evaluates an expression with `$type` as the type of the values of a dtype, or `$other` for other dtypes.
#[macro_export]
macro_rules! by_dtype {
    ($dtype:expr, $type:ident => $body:expr, else $other:expr) => {
        match $dtype {
            burn::tensor::DType::F32 => {
                type $type = f32;
                $body
            }
            burn::tensor::DType::F16 => {
                type $type = $crate::cpu::stored::f16;
                $body
            }
            burn::tensor::DType::BF16 => {
                type $type = $crate::cpu::stored::bf16;
                $body
            }
            _ => $other,
        }
    };
}
/// A tensor of values in row-major order.
pub fn tensor<E: Element + bytemuck::Pod + Send + Sync>(values: Vec<E>, shape: Shape) -> FlexTensor {
    FlexTensor::new(Bytes::from_elems(values), Layout::contiguous(shape), E::dtype())
}

/// A tensor of zeros, in memory that the system gives as zeros. burn's own function writes the memory twice, and needs twice its size for
/// a short time.
pub fn zeros(shape: Shape, dtype: DType) -> FlexTensor {
    let count = shape.num_elements();
    by_dtype!(dtype, E => tensor(bytemuck::zeroed_vec::<E>(count), shape), else FlexTensor::zeros(shape, dtype))
}

/// A tensor to be written to, in row-major order: the tensor itself if no other handle to it exists and it fills its memory, otherwise a
/// copy made by all threads.
pub fn owned(tensor: FlexTensor) -> FlexTensor {
    const CHUNK: usize = 1 << 16;
    let (shape, dtype) = (tensor.shape(), tensor.dtype());
    let covers = |tensor: &FlexTensor| tensor.bytes().len() == shape.num_elements() * dtype.size();
    let contiguous = tensor.to_contiguous();
    drop(tensor); // or else it would count as somebody else
    if covers(&contiguous) && contiguous.is_unique() {
        return contiguous;
    }
    let mut copy = zeros(shape.clone(), dtype);
    by_dtype!(dtype, E => {
        let values = &contiguous.storage::<E>()[contiguous.layout().start_offset()..];
        let chunks = copy.storage_mut::<E>().par_chunks_mut(CHUNK).zip(values.par_chunks(CHUNK));
        chunks.for_each(|(copy, values)| copy.copy_from_slice(&values[..copy.len()]));
        copy
    }, else contiguous)
}

/// All values of a tensor as f32.
pub fn to_f32(tensor: &FlexTensor) -> Vec<f32> {
    let tensor = tensor.to_contiguous();
    by_dtype!(tensor.dtype(), E => {
        let mut buffer = vec![];
        E::widened(tensor.storage::<E>(), &mut buffer).to_vec()
    }, else vec![])
}

/// A tensor of f32 values, kept in `dtype`. In f32 it has the memory of `values`.
pub fn from_f32(values: Vec<f32>, shape: Shape, dtype: DType) -> FlexTensor {
    const PIECE: usize = 1 << 10;
    if dtype == DType::F32 {
        return tensor(values, shape);
    }
    by_dtype!(dtype, E => {
        let (mut kept, mut wide) = (vec![E::zeroed(); values.len()], vec![]);
        for (kept, values) in kept.chunks_mut(PIECE).zip(values.chunks(PIECE)) {
            E::written(kept, &mut wide, |out| out.copy_from_slice(values));
        }
        tensor(kept, shape)
    }, else tensor(values, shape))
}

/// The number of rows of a tensor, and their length. A row is along the last dimension.
pub fn rows(tensor: &FlexTensor) -> (usize, usize) {
    let shape = tensor.shape();
    let length = shape.last().copied().unwrap_or(1);
    (shape.num_elements() / length.max(1), length)
}

/// The samples of group `index` if `count` samples are divided into at most `groups` groups. The groups do not depend on the number of
/// threads, so sums over them always have the same bits.
pub fn group(index: usize, count: usize, groups: usize) -> Range<usize> {
    let size = count.div_ceil(groups).max(1);
    (index * size).min(count)..((index + 1) * size).min(count)
}
