//! Ranges of a tensor's values as f32, converted by all threads.

use std::ops::Range;

use burn::backend::flex::FlexTensor;
use burn::tensor::DType;
use rayon::prelude::*;

use kiln_operations::by_dtype;
use kiln_operations::cpu::factor::Values;
use kiln_operations::cpu::stored::{Stored, bf16};

/// Values of a task.
const CHUNK: usize = 1 << 14;
/// Values that a task converts at a time.
const PIECE: usize = 1 << 10;

fn widen<E: Stored>(out: &mut [f32], values: &[E], wide: &mut Vec<f32>) {
    out.chunks_mut(PIECE).zip(values.chunks(PIECE)).for_each(|(out, values)| {
        out.copy_from_slice(E::widened(values, wide));
    });
}

fn narrow<E: Stored>(out: &mut [E], values: &[f32], kept: &mut Vec<f32>) {
    out.chunks_mut(PIECE).zip(values.chunks(PIECE)).for_each(|(out, values)| {
        E::written(out, kept, |out| out.copy_from_slice(values));
    });
}

/// The values of a contiguous tensor: the values themselves, or widened copies in `buffer`.
pub(super) fn widened<'a>(tensor: &'a FlexTensor, range: Range<usize>, buffer: &'a mut Vec<f32>) -> &'a [f32] {
    fn run<'a, E: Stored>(values: &'a [E], buffer: &'a mut Vec<f32>) -> &'a [f32] {
        if E::dtype() == DType::F32 {
            return E::widened(values, buffer);
        }
        buffer.resize(values.len(), 0.0);
        let chunks = buffer.par_chunks_mut(CHUNK).zip(values.par_chunks(CHUNK));
        chunks.for_each_init(Vec::new, |wide, (out, values)| widen(out, values, wide));
        buffer
    }
    by_dtype!(tensor.dtype(), E => run::<E>(&tensor.storage()[range], buffer), else &[])
}

/// The values of a contiguous tensor for a product [in bf16](in_bf16), or as [`widened`] gives them.
pub(super) fn of_product<'a>(
    tensor: &'a FlexTensor,
    range: Range<usize>,
    in_bf16: bool,
    buffer: &'a mut Vec<f32>,
) -> Values<'a> {
    match in_bf16 {
        true => Values::Bf16(&tensor.storage::<bf16>()[range]),
        false => Values::F32(widened(tensor, range, buffer)),
    }
}

/// Whether a layer multiplies values in bf16: if its input and its weight are bf16. A prologue's output is then rounded to bf16, as under
/// torch's autocast; sums are f32.
pub(super) fn in_bf16(x: &FlexTensor, weight: &FlexTensor) -> bool {
    x.dtype() == DType::BF16 && weight.dtype() == DType::BF16
}

/// Calls `compute` to write the values of a contiguous tensor, in place or through `buffer`. The values that it finds have no meaning.
pub(super) fn written(
    tensor: &mut FlexTensor,
    range: Range<usize>,
    buffer: &mut Vec<f32>,
    compute: impl FnOnce(&mut [f32]),
) {
    write(tensor, range, buffer, false, compute);
}

/// Calls `compute` to change the values of a contiguous tensor, in place or through `buffer`.
pub(super) fn changed(
    tensor: &mut FlexTensor,
    range: Range<usize>,
    buffer: &mut Vec<f32>,
    compute: impl FnOnce(&mut [f32]),
) {
    write(tensor, range, buffer, true, compute);
}

fn write(
    tensor: &mut FlexTensor,
    range: Range<usize>,
    buffer: &mut Vec<f32>,
    reads: bool,
    compute: impl FnOnce(&mut [f32]),
) {
    fn run<E: Stored>(values: &mut [E], buffer: &mut Vec<f32>, reads: bool, compute: impl FnOnce(&mut [f32])) {
        if E::dtype() == DType::F32 {
            return E::written(values, buffer, compute);
        }
        buffer.resize(values.len(), 0.0);
        if reads {
            let chunks = buffer.par_chunks_mut(CHUNK).zip(values.par_chunks(CHUNK));
            chunks.for_each_init(Vec::new, |wide, (out, values)| widen(out, values, wide));
        }
        compute(buffer);
        let chunks = values.par_chunks_mut(CHUNK).zip(buffer.par_chunks(CHUNK));
        chunks.for_each_init(Vec::new, |kept, (out, values)| narrow(out, values, kept));
    }
    by_dtype!(tensor.dtype(), E => run::<E>(&mut tensor.storage_mut()[range], buffer, reads, compute), else ())
}
