//! Codes of four bits and their scales, as bitsandbytes computes them.

use kiln_operations::four_bits::{BLOCK, GROUP, LEVELS, OF_WORD, OFFSET};
use kiln_operations::{dynamic_map, four_bit_lengths};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// The numbers in [-1, 1] that codes of four bits stand for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FourBitLevels {
    /// NormalFloat: quantiles of the normal distribution, and 0 (Dettmers et al. 2023, arXiv 2305.14314, appendix E).
    #[default]
    Nf4,
    /// Equal steps: -7/7, -6/7, .. 7/7.
    Int4,
}

impl FourBitLevels {
    /// The levels from the smallest to the largest.
    pub fn levels(self) -> [f32; LEVELS] {
        match self {
            Self::Nf4 => [
                -1.0,
                -0.696_192_8,
                -0.525_073_05,
                -0.394_917_5,
                -0.284_441_38,
                -0.184_773_43,
                -0.091_050_036,
                0.0,
                0.079_580_3,
                0.160_930_2,
                0.246_112_3,
                0.337_915_24,
                0.440_709_83,
                0.562_617,
                0.722_956_84,
                1.0,
            ],
            // The last code is not used: no number is larger than the largest.
            Self::Int4 => std::array::from_fn(|code| (code as f32 - 7.0) / 7.0),
        }
    }
}

/// The codes of a weight, in the form of [`FourBitWeight`](kiln_operations::FourBitWeight).
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Coded {
    pub(super) levels: Vec<f32>,
    pub(super) codes: Vec<i32>,
    pub(super) scales: Vec<i32>,
}

/// The code of the level that is nearest to `number`. Of two equally near ones it is the smaller.
fn nearest(thresholds: &[f32], number: f32) -> usize {
    thresholds.partition_point(|threshold| *threshold < number)
}

/// The numbers in the middle between levels.
fn thresholds(levels: &[f32]) -> Vec<f32> {
    levels.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0).collect()
}

fn largest(numbers: &[f32]) -> f32 {
    numbers.iter().fold(0.0, |largest, number| number.abs().max(largest))
}

/// A number that divides by `scale`.
fn divided(number: f32, scale: f32) -> f32 {
    if scale > 0.0 { number / scale } else { 0.0 }
}

impl Coded {
    /// The codes of the values of a matrix `[outputs, inputs]` in row-major order. The scale of a block is its largest magnitude.
    pub(super) fn of(values: &[f32], levels: FourBitLevels) -> Self {
        let largest_of_blocks: Vec<f32> = values.par_chunks(BLOCK).map(largest).collect();
        let sum: f64 = largest_of_blocks.iter().map(|largest| f64::from(*largest)).sum();
        let offset = if largest_of_blocks.is_empty() { 0.0 } else { (sum / largest_of_blocks.len() as f64) as f32 };
        let map = dynamic_map(true, 7);
        let map_thresholds = thresholds(&map);

        let mut all = [&levels.levels()[..], &map, &[offset]].concat();
        let mut scale_codes = vec![];
        for group in largest_of_blocks.chunks(GROUP) {
            let centred: Vec<f32> = group.iter().map(|largest| largest - offset).collect();
            let scale = largest(&centred);
            all.push(scale);
            scale_codes.extend(centred.iter().map(|number| nearest(&map_thresholds, divided(*number, scale)) as u8));
        }

        let code_thresholds = thresholds(&levels.levels());
        let [_, words, of_scales] = four_bit_lengths(values.len());
        let mut codes = vec![0; words];
        let blocks = codes.par_chunks_mut(BLOCK / OF_WORD).zip(values.par_chunks(BLOCK)).zip(&largest_of_blocks);
        blocks.for_each(|((words, values), scale)| {
            let code = |index: usize| match values.get(index) {
                Some(value) => nearest(&code_thresholds, divided(*value, *scale)) as u32,
                None => 0,
            };
            for (index, word) in words.iter_mut().enumerate() {
                let bytes: [u8; 4] = std::array::from_fn(|byte| {
                    let first = OF_WORD * index + 2 * byte;
                    (code(first) << 4 | code(first + 1)) as u8
                });
                *word = i32::from_le_bytes(bytes);
            }
        });
        scale_codes.resize(4 * of_scales, 0);
        let scales = scale_codes.chunks_exact(4).map(|bytes| i32::from_le_bytes(std::array::from_fn(|at| bytes[at])));
        Self { levels: all, codes, scales: scales.collect() }
    }

    /// The values of the codes, as many as there were.
    pub(super) fn values(&self, count: usize) -> Vec<f32> {
        let bytes = |words: &[i32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let (codes, scales) = (bytes(&self.codes), bytes(&self.scales));
        let value = |index: usize| {
            let (byte, block) = (codes[index / 2], index / BLOCK);
            let code = if index.is_multiple_of(2) { byte >> 4 } else { byte & 15 };
            let scale = self.levels[LEVELS + usize::from(scales[block])] * self.levels[OFFSET + 1 + block / GROUP];
            self.levels[usize::from(code)] * (scale + self.levels[OFFSET])
        };
        (0..count).into_par_iter().map(value).collect()
    }

    /// Codes without a meaning, of a weight with so many values.
    pub(super) fn empty(values: usize) -> Self {
        let [levels, codes, scales] = four_bit_lengths(values);
        Self { levels: vec![0.0; levels], codes: vec![0; codes], scales: vec![0; scales] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_grow_and_have_zero_and_one() {
        for levels in [FourBitLevels::Nf4, FourBitLevels::Int4] {
            let all = levels.levels();
            assert!(all.windows(2).all(|pair| pair[0] < pair[1]), "{levels:?}");
            assert!(all[0] == -1.0 && all[7] == 0.0 && all.contains(&1.0), "{levels:?}");
        }
    }

    #[test]
    fn a_number_has_the_code_of_the_nearest_level() {
        let thresholds = thresholds(&[-1.0, 0.0, 1.0]);
        let codes = [-2.0, -0.51, -0.5, 0.0, 0.5, 0.51, 2.0].map(|number| nearest(&thresholds, number));
        assert_eq!(codes, [0, 0, 0, 1, 1, 2, 2]);
    }

    #[test]
    fn blocks_of_zeros_and_rests_have_codes() {
        let coded = Coded::of(&[0.0; 100], FourBitLevels::Nf4);
        assert_eq!((coded.levels.len(), coded.codes.len(), coded.scales.len()), (274, 16, 1));
        assert!(coded.levels.iter().all(|level| level.is_finite()));
        assert_eq!(Coded::of(&[], FourBitLevels::Nf4).codes, Vec::<i32>::new());
    }
}
