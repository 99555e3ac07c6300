//! Random numbers of attention dropout. They depend only on seed, head, query and key.

use burn::backend::flex::FlexTensor;

use crate::dropout::flex::number;
use kiln_operations::simd;

/// Counters that are computed together as vectors. Each gives 4 numbers.
const LANES: usize = 16;
/// Numbers of one step. A step is for keys from a multiple of it on.
const STEP: usize = 4 * LANES;

/// The dropout of one call: seed, threshold and factor.
#[derive(Clone, Copy)]
pub(super) struct Dropout {
    seed: [u32; 2],
    /// A weight is dropped if its random number is less than this.
    threshold: u32,
    /// The factor of the weights that are kept.
    pub(super) factor: f32,
}

impl Dropout {
    /// `seed` is a tensor of one integer.
    pub(super) fn new(seed: &FlexTensor, rate: f64) -> Self {
        let number = number(seed);
        let threshold = (rate * 2f64.powi(32)) as u32;
        Self { seed: [number as u32, (number >> 32) as u32], threshold, factor: (1.0 / (1.0 - rate)) as f32 }
    }

    /// Sets the dropped weights of a block to zero. `values` are rows of `stride`, of which the first `seen[row]` values count. `head` is
    /// counted over all samples. `key` is a multiple of the numbers of a step.
    pub(super) fn drop(&self, values: &mut [f32], stride: usize, seen: &[usize], [head, query, key]: [usize; 3]) {
        drop_rows(values, stride, seen, [head, query, key], self.seed, self.threshold);
    }

    /// Makes the dropped weights of a block negative, and copies the weights into `kept`, with zeros for the dropped ones.
    pub(super) fn sign(
        &self,
        values: &mut [f32],
        kept: &mut [f32],
        stride: usize,
        seen: &[usize],
        [head, query, key]: [usize; 3],
    ) {
        kept.copy_from_slice(values);
        self.drop(kept, stride, seen, [head, query, key]);
        sign_dropped(values, kept);
    }
}

simd! { fn drop_rows(values: &mut [f32], stride: usize, seen: &[usize], place: [usize; 3], seed: [u32; 2], threshold: u32) {
    let [head, query, key] = place;
    for (row, (values, &seen)) in values.chunks_exact_mut(stride).zip(seen).enumerate() {
        for (step, values) in values[..seen].chunks_mut(STEP).enumerate() {
            let first = ((key / STEP + step) * LANES) as u32;
            let numbers = philox(first, (query + row) as u32, head as u64, seed);
            for (values, numbers) in values.chunks_mut(LANES).zip(&numbers) {
                for (value, number) in values.iter_mut().zip(numbers) {
                    *value = if *number < threshold { 0.0 } else { *value };
                }
            }
        }
    }
}}

simd! { fn sign_dropped(values: &mut [f32], kept: &[f32]) {
    for (value, kept) in values.iter_mut().zip(kept) {
        *value = if *kept == 0.0 { -*value } else { *value };
    }
}}

/// Philox 4x32-10 (Salmon et al. 2011) for `LANES` counters from `first` on.
#[inline(always)]
fn philox(first: u32, row: u32, head: u64, seed: [u32; 2]) -> [[u32; LANES]; 4] {
    let mut words = [[0; LANES], [row; LANES], [head as u32; LANES], [(head >> 32) as u32; LANES]];
    for (lane, word) in words[0].iter_mut().enumerate() {
        *word = first + lane as u32;
    }
    let mut keys = seed;
    for _ in 0..10 {
        let [a, b, c, d] = words;
        for lane in 0..LANES {
            let left = u64::from(a[lane]) * 0xD251_1F53;
            let right = u64::from(c[lane]) * 0xCD9E_8D57;
            words[0][lane] = (right >> 32) as u32 ^ b[lane] ^ keys[0];
            words[1][lane] = right as u32;
            words[2][lane] = (left >> 32) as u32 ^ d[lane] ^ keys[1];
            words[3][lane] = left as u32;
        }
        keys = [keys[0].wrapping_add(0x9E37_79B9), keys[1].wrapping_add(0xBB67_AE85)];
    }
    words
}

#[cfg(test)]
mod tests {
    use super::philox;

    /// The known answers of Random123, the authors' library.
    #[test]
    fn philox_gives_the_numbers_of_its_authors() {
        let first = |words: [[u32; super::LANES]; 4]| words.map(|word| word[0]);
        assert_eq!(first(philox(0, 0, 0, [0, 0])), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        let words = philox(0x243f_6a88, 0x85a3_08d3, 0x0370_7344_1319_8a2e, [0xa409_3822, 0x299f_31d0]);
        assert_eq!(first(words), [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }
}
