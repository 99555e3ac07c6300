//! Addition and ReLU on the CPU: one pass in each direction.
//!
//! Scratch memory: at most 64 KiB for each thread. Multiply-adds for each value: 1 forward, 0 backward. The output is written over a
//! summand if no other handle to it exists, and the gradients over the output's gradient.

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use rayon::prelude::*;

use super::cost::PIECE;
use kiln_operations::by_dtype;
use kiln_operations::cpu::stored::{Stored, owned, zeros};
use kiln_operations::simd;

/// The fewest pieces of a task.
const PIECES: usize = 8;

simd! { fn add_piece(y: &mut [f32], a: &[f32], b: &[f32]) {
    for ((y, a), b) in y.iter_mut().zip(a).zip(b) {
        let sum = a + b;
        *y = if sum <= 0.0 { 0.0 } else { sum };
    }
}}

simd! { fn add_in_place(y: &mut [f32], b: &[f32]) {
    for (y, b) in y.iter_mut().zip(b) {
        let sum = *y + b;
        *y = if sum <= 0.0 { 0.0 } else { sum };
    }
}}

simd! { fn mask_piece(gradient: &mut [f32], y: &[f32]) {
    gradient.iter_mut().zip(y).for_each(|(g, &y)| *g = if y <= 0.0 { 0.0 } else { *g });
}}

pub(super) fn forward(a: FlexTensor, b: &FlexTensor) -> FlexTensor {
    fn run<E: Stored>(a: FlexTensor, b: &FlexTensor) -> FlexTensor {
        let b = b.to_contiguous();
        if a.is_unique() {
            return changed::<E>(a, &b, add_in_place);
        }
        let a = a.to_contiguous();
        let mut y = zeros(a.shape(), a.dtype());
        let pieces = a.storage::<E>().par_chunks(PIECE).zip(b.storage::<E>().par_chunks(PIECE));
        y.storage_mut::<E>().par_chunks_mut(PIECE).zip(pieces).with_min_len(PIECES).for_each_init(
            || [(); 3].map(|()| vec![]),
            |[first, second, kept], (y, (a, b))| {
                let (a, b) = (E::widened(a, first), E::widened(b, second));
                E::written(y, kept, |y| add_piece(y, a, b));
            },
        );
        y
    }
    by_dtype!(a.dtype(), E => run::<E>(a, b), else a)
}

pub(super) fn backward(y: &FlexTensor, gradient: FlexTensor) -> FlexTensor {
    by_dtype!(y.dtype(), E => changed::<E>(gradient, &y.to_contiguous(), mask_piece), else gradient)
}

/// Changes the values of a tensor by those of another. The tensor is overwritten if no other handle to it exists.
fn changed<E: Stored>(tensor: FlexTensor, other: &FlexTensor, change: fn(&mut [f32], &[f32])) -> FlexTensor {
    let mut tensor = owned(tensor);
    let pieces = tensor.storage_mut::<E>().par_chunks_mut(PIECE).zip(other.storage::<E>().par_chunks(PIECE));
    pieces.with_min_len(PIECES).for_each_init(
        || (vec![], vec![]),
        |(wide, kept), (values, other)| {
            let other = E::widened(other, wide);
            E::changed(values, kept, |values| change(values, other));
        },
    );
    tensor
}
