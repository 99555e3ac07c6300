//! Rotary position embedding on the CPU, in place.
//!
//! Scratch memory: 4 time depth bytes for the cosines and sines, and a row in f32 for each thread with 16-bit inputs. Multiply-adds: 2 for
//! each value, and time depth / 2 sines and cosines in f64.

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use rayon::prelude::*;

use super::settings::Direction;
use super::{RotaryOptions, RotaryPairs};
use kiln_operations::by_dtype;
use kiln_operations::cpu::stored::Stored;
use kiln_operations::simd;

/// Rows of a task.
const ROWS: usize = 64;

simd! { fn rotate_adjacent(row: &mut [f32], cosines: &[f32], sines: &[f32]) {
    for ((pair, &cosine), &sine) in row.chunks_exact_mut(2).zip(cosines).zip(sines) {
        let (a, b) = (pair[0], pair[1]);
        pair[0] = a * cosine - b * sine;
        pair[1] = a * sine + b * cosine;
    }
}}

simd! { fn rotate_halves(row: &mut [f32], cosines: &[f32], sines: &[f32]) {
    let (first, second) = row.split_at_mut(cosines.len());
    for (((a, b), &cosine), &sine) in first.iter_mut().zip(second).zip(cosines).zip(sines) {
        (*a, *b) = (*a * cosine - *b * sine, *a * sine + *b * cosine);
    }
}}

/// Rotates the rows `[.., time, depth]`. `x` is overwritten if no other handle to it exists.
pub(super) fn rotated(x: FlexTensor, options: RotaryOptions, direction: Direction) -> FlexTensor {
    fn run<E: Stored>(x: FlexTensor, options: RotaryOptions, direction: Direction) -> FlexTensor {
        let shape = x.shape();
        let [time, depth] = [shape[shape.num_dims() - 2], shape[shape.num_dims() - 1]];
        let covers = x.is_contiguous() && x.bytes().len() == shape.num_elements() * size_of::<E>();
        let mut x = if covers { x } else { x.to_contiguous() };
        if shape.num_elements() == 0 {
            return x;
        }
        // Cosines, then sines, of each position.
        let mut table = vec![0.0f32; time * depth];
        table.par_chunks_mut(depth).enumerate().for_each(|(row, table)| {
            let (cosines, sines) = table.split_at_mut(depth / 2);
            for (pair, (cosine, sine)) in cosines.iter_mut().zip(sines).enumerate() {
                let angle = options.angle(row, pair, depth);
                let angle = if direction == Direction::Back { -angle } else { angle };
                (*cosine, *sine) = (angle.cos() as f32, angle.sin() as f32);
            }
        });
        x.storage_mut::<E>().par_chunks_mut(ROWS * depth).enumerate().for_each_init(Vec::new, |wide, (task, rows)| {
            for (row, values) in rows.chunks_exact_mut(depth).enumerate() {
                let position = (task * ROWS + row) % time;
                let (cosines, sines) = table[position * depth..][..depth].split_at(depth / 2);
                E::changed(values, wide, |values| match options.pairs {
                    RotaryPairs::Adjacent => rotate_adjacent(values, cosines, sines),
                    RotaryPairs::Halves => rotate_halves(values, cosines, sines),
                });
            }
        });
        x
    }
    by_dtype!(x.dtype(), E => run::<E>(x, options, direction), else x)
}
