//! Dropout on the CPU, with random numbers that depend only on seed and position.
//!
//! Scratch memory: none in f32, otherwise `4 * CHUNK` bytes for each thread. About 25 integer operations for each value.

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::tensor::DType;
use rayon::prelude::*;

use super::settings::{CHUNK, Dropout, Rate};
use kiln_operations::by_dtype;
use kiln_operations::cpu::stored::{Stored, owned};
use kiln_operations::simd;

/// Number of generators that are computed together.
const LANES: usize = 16;
/// Number of values of `LANES` generators, four for each.
const BLOCK: usize = 4 * LANES;

/// Four random words of each of `LANES` generators with the counters `first`, `first + 1`, ..: Philox 4x32 with 7 rounds.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "the compiler vectorises loops over lanes that are written so")]
fn philox(first: u64, seed: u64) -> [[u32; LANES]; 4] {
    let mut words = [[0u32; LANES]; 4];
    for lane in 0..LANES {
        let counter = first + lane as u64;
        (words[0][lane], words[1][lane]) = (counter as u32, (counter >> 32) as u32);
    }
    let mut key = [seed as u32, (seed >> 32) as u32];
    for _ in 0..7 {
        for lane in 0..LANES {
            let left = u64::from(words[0][lane]) * 0xD251_1F53;
            let right = u64::from(words[2][lane]) * 0xCD9E_8D57;
            words[0][lane] = (right >> 32) as u32 ^ words[1][lane] ^ key[0];
            words[1][lane] = right as u32;
            words[2][lane] = (left >> 32) as u32 ^ words[3][lane] ^ key[1];
            words[3][lane] = left as u32;
        }
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    words
}

simd! { /// Drops values below `threshold` out of 2³². `first`: the position of the first value.
fn drop_values(values: &mut [f32], first: u64, seed: u64, threshold: u64, scale: f32) {
    let blocks = first / BLOCK as u64;
    for (values, block) in values.chunks_mut(BLOCK).zip(blocks..) {
        let words = philox(block * LANES as u64, seed);
        let mut factors = [0.0f32; BLOCK];
        for (factor, word) in factors.iter_mut().zip(words.as_flattened()) {
            *factor = if u64::from(*word) < threshold { 0.0 } else { scale };
        }
        values.iter_mut().zip(&factors).for_each(|(value, factor)| *value *= factor);
    }
}}

/// Drops values of `x`, which is overwritten if no other handle to it exists.
pub(super) fn dropped(x: FlexTensor, Dropout { rate, seed }: Dropout) -> FlexTensor {
    let length = x.shape().num_elements();
    dropped_by(x, (rate, seed), [length, 0])
}

/// Drops values of samples along the first dimension, by a seed of one integer. The first sample has this number.
pub(super) fn dropped_of_samples(x: FlexTensor, seed: &FlexTensor, rate: Rate, first: usize) -> FlexTensor {
    let (samples, all) = (x.shape()[0].max(1), x.shape().num_elements());
    dropped_by(x, (rate, number(seed).cast_unsigned()), [all / samples, first])
}

/// Drops values. The random numbers of each `length` of them are a function of the seed, of their place and of the number of such values
/// before them, of which there were `before` elsewhere.
fn dropped_by(x: FlexTensor, (rate, seed): (Rate, u64), [length, before]: [usize; 2]) -> FlexTensor {
    fn run<E: Stored>(x: &mut FlexTensor, (rate, seed): (Rate, u64), [length, before]: [usize; 2]) {
        let (threshold, scale, stride) = (rate.threshold(), rate.factor(), length.next_multiple_of(BLOCK));
        x.storage_mut::<E>().par_chunks_mut(length.max(1)).enumerate().for_each(|(index, values)| {
            let start = (before + index) * stride;
            let chunks = values.par_chunks_mut(CHUNK).enumerate();
            chunks.for_each_init(Vec::new, |wide, (index, values)| {
                let first = (start + index * CHUNK) as u64;
                E::changed(values, wide, |values| drop_values(values, first, seed, threshold, scale));
            });
        });
    }
    let mut x = owned(x);
    by_dtype!(x.dtype(), E => run::<E>(&mut x, (rate, seed), [length, before]), else ());
    x
}

/// The integer of a tensor of one integer.
pub(crate) fn number(seed: &FlexTensor) -> i64 {
    let seed = seed.to_contiguous();
    match seed.dtype() {
        DType::I64 => seed.storage::<i64>()[0],
        DType::I32 => seed.storage::<i32>()[0].into(),
        DType::I16 => seed.storage::<i16>()[0].into(),
        DType::I8 => seed.storage::<i8>()[0].into(),
        DType::U64 => seed.storage::<u64>()[0].cast_signed(),
        DType::U32 => seed.storage::<u32>()[0].into(),
        DType::U16 => seed.storage::<u16>()[0].into(),
        DType::U8 => seed.storage::<u8>()[0].into(),
        _ => 0,
    }
}
