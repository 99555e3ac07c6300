//! Weights as small whole numbers times scales, and back; whole numbers of a few bits in a row of bytes.

use super::blocks::Blocks;
use half::f16;
use serde::{Deserialize, Serialize};

/// The method that chooses the range of a block of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightRange {
    /// The largest magnitude of the block: nothing is clipped.
    #[default]
    Max,
    /// The part of the largest magnitude that gives the least squared error over the block. Parts are searched in steps of a hundredth;
    /// the largest magnitude itself is among them, so the squared error is never above that of [`Max`](Self::Max).
    LeastSquares,
}

/// The largest code of `bits` bits, 2 to 8: 127 for 8. Codes are symmetric, so -128 is not used.
pub(crate) fn largest_code(bits: u8) -> f32 {
    f32::from((1_u8 << (bits - 1)) - 1)
}

/// One scale for each block: the range over the largest code. A block of zeros has the scale 1. With `half_scales` each scale is
/// rounded up to a number of 16 bits.
pub(crate) fn scales(weights: &[f32], blocks: &Blocks, bits: u8, range: WeightRange, half_scales: bool) -> Vec<f32> {
    let largest = largest_code(bits);
    let scale_of = |magnitude: f32| usable(magnitude / largest, half_scales);
    let mut block = Vec::with_capacity(blocks.length);
    blocks
        .positions()
        .map(|positions| {
            block.clear();
            block.extend(positions.map(|position| weights[position]));
            let magnitude = block.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
            match range {
                WeightRange::Max => scale_of(magnitude),
                WeightRange::LeastSquares => least_squares(&block, largest, |part| scale_of(magnitude * part)),
            }
        })
        .collect()
}

/// The code of each weight: the weight over its scale, rounded to the nearest whole number (to the even one of two), clamped.
pub(crate) fn codes(weights: &[f32], blocks: &Blocks, scales: &[f32], bits: u8) -> Vec<i8> {
    let largest = largest_code(bits);
    let mut codes = Vec::with_capacity(weights.len());
    for (run, scales) in blocks.runs(scales) {
        match scales {
            [scale] => codes.extend(weights[run].iter().map(|weight| code(*weight, *scale, largest) as i8)),
            scales => codes
                .extend(weights[run].iter().zip(scales).map(|(weight, scale)| code(*weight, *scale, largest) as i8)),
        }
    }
    codes
}

/// The value of each code: the code times its scale.
pub(crate) fn values(codes: &[i8], blocks: &Blocks, scales: &[f32]) -> Vec<f32> {
    let mut values = Vec::with_capacity(codes.len());
    for (run, scales) in blocks.runs(scales) {
        match scales {
            [scale] => values.extend(codes[run].iter().map(|code| f32::from(*code) * scale)),
            scales => values.extend(codes[run].iter().zip(scales).map(|(code, scale)| f32::from(*code) * scale)),
        }
    }
    values
}

fn code(weight: f32, scale: f32, largest: f32) -> f32 {
    (weight / scale).round_ties_even().clamp(-largest, largest)
}

/// A scale that divides: 1 in place of 0, also where the quotient of the smallest numbers underflows to 0.
fn usable(scale: f32, half_scales: bool) -> f32 {
    match (scale > 0.0, half_scales) {
        (false, _) => 1.0,
        (true, false) => scale,
        (true, true) => round_up(scale),
    }
}

/// The smallest number of 16 bits that is not below `scale`, and the largest one above their range.
fn round_up(scale: f32) -> f32 {
    let nearest = f16::from_f32(scale);
    // The bits of positive numbers count upwards.
    let above = if nearest.to_f32() < scale { f16::from_bits(nearest.to_bits() + 1) } else { nearest };
    above.min(f16::MAX).to_f32()
}

/// The scale of the least squared error: parts in steps of 0.05, then in steps of 0.01 around the best.
fn least_squares(block: &[f32], largest: f32, scale_of: impl Fn(f32) -> f32) -> f32 {
    let error = |scale: f32| {
        let squares = block.iter().map(|weight| f64::from(code(*weight, scale, largest) * scale - weight).powi(2));
        squares.sum::<f64>()
    };
    let best_of = |hundredths: &mut dyn Iterator<Item = i32>| {
        let tried = hundredths.map(|part| (part, scale_of(part as f32 / 100.0)));
        tried.map(|(part, scale)| (error(scale), part, scale)).min_by(|a, b| a.0.total_cmp(&b.0))
    };
    let Some((coarse_error, part, coarse)) = best_of(&mut (1..=20).rev().map(|step| step * 5)) else {
        return scale_of(1.0);
    };
    match best_of(&mut ((part - 4).max(1)..=(part + 4).min(100)).rev()) {
        Some((fine_error, _, fine)) if fine_error < coarse_error => fine,
        _ => coarse,
    }
}

/// `codes` as a stream of bits: the lowest `bits` bits of each code, the first code in the lowest bits of the first byte. With 4 bits that
/// is two codes a byte, with 8 bits the codes themselves.
pub(crate) fn pack(codes: &[i8], bits: u8) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(packed_len(codes.len(), bits));
    let (mut pending, mut filled) = (0_u32, 0);
    for code in codes {
        pending |= (u32::from(*code as u8) & mask(bits)) << filled;
        filled += bits;
        while filled >= 8 {
            bytes.push(pending as u8);
            pending >>= 8;
            filled -= 8;
        }
    }
    if filled > 0 {
        bytes.push(pending as u8);
    }
    bytes
}

/// The `count` codes of `bytes`; none if there are not as many bytes as they need.
pub(crate) fn unpack(bytes: &[u8], bits: u8, count: usize) -> Option<Vec<i8>> {
    if bytes.len() != packed_len(count, bits) {
        return None;
    }
    let mut codes = Vec::with_capacity(count);
    let (mut pending, mut filled) = (0_u32, 0);
    for byte in bytes {
        pending |= u32::from(*byte) << filled;
        filled += 8;
        while filled >= bits && codes.len() < count {
            // The sign is the highest bit of the code.
            let unused = 8 - bits;
            codes.push(((pending & mask(bits)) as u8).wrapping_shl(u32::from(unused)) as i8 >> unused);
            pending >>= bits;
            filled -= bits;
        }
    }
    Some(codes)
}

/// The bytes of `count` codes.
pub(crate) fn packed_len(count: usize, bits: u8) -> usize {
    (count as u128 * u128::from(bits)).div_ceil(8) as usize
}

/// The lowest `bits` bits.
fn mask(bits: u8) -> u32 {
    (1 << bits) - 1
}

#[cfg(test)]
mod tests {
    use super::super::blocks::Granularity;
    use super::*;
    use proptest::prelude::*;

    fn squares(a: &[f32], b: &[f32]) -> f64 {
        a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum()
    }

    #[test]
    fn the_largest_magnitude_has_the_largest_code() {
        let blocks = Blocks::of(&[2, 4], false, Granularity::Channel);
        let weights = [0.5, -1.0, 0.25, 0.0, 0.0, 0.0, 0.0, 0.0];
        let scales = scales(&weights, &blocks, 8, WeightRange::Max, false);
        assert_eq!(scales, [1.0 / 127.0, 1.0]);
        // 63.5 and 31.75.
        assert_eq!(codes(&weights, &blocks, &scales, 8), [64, -127, 32, 0, 0, 0, 0, 0]);
        assert_eq!([2, 3, 4, 8].map(largest_code), [1.0, 3.0, 7.0, 127.0]);
    }

    #[test]
    fn numbers_too_small_to_divide_are_zeros() {
        let blocks = Blocks::of(&[2], false, Granularity::Tensor);
        let weights = [f32::from_bits(1), 0.0];
        let scales = scales(&weights, &blocks, 8, WeightRange::Max, false);
        assert_eq!((codes(&weights, &blocks, &scales, 8), scales), (vec![0, 0], vec![1.0]));
    }

    #[test]
    fn an_outlier_is_clipped_where_that_is_better() {
        let mut weights: Vec<f32> = (0..1000).map(|index| (index as f32 * 0.37).sin()).collect();
        weights[0] = 10.0;
        let blocks = Blocks::of(&[1000], false, Granularity::Tensor);
        let error = |range| {
            let scales = scales(&weights, &blocks, 4, range, false);
            squares(&weights, &values(&codes(&weights, &blocks, &scales, 4), &blocks, &scales))
        };
        // A step of 10 / 7 rounds most values to 0.
        assert!(error(WeightRange::LeastSquares) < 0.5 * error(WeightRange::Max));
    }

    #[test]
    fn four_bits_are_two_codes_a_byte() {
        assert_eq!(pack(&[1, -1, 7, -7, 3], 4), [0xF1, 0x97, 0x03]);
        assert_eq!(pack(&[1, -1, 127], 8), [1, 255, 127]);
        assert_eq!(unpack(&[0xF1], 4, 3), None);
        assert_eq!(unpack(&[0xF1, 0, 0], 4, 3), None);
    }

    proptest! {
        #[test]
        fn a_value_is_at_most_half_a_step_off(
            weights in prop::collection::vec(-1e3_f32..1e3, 24), bits in 2_u8..=8, half_scales: bool, size in 1_usize..8,
        ) {
            for blocks in [Blocks::of(&[6, 4], true, Granularity::Block(size)), Blocks::of(&[4, 6], false, Granularity::Block(size))] {
                let scales = scales(&weights, &blocks, bits, WeightRange::Max, half_scales);
                let codes = codes(&weights, &blocks, &scales, bits);
                let values = values(&codes, &blocks, &scales);
                for (positions, scale) in blocks.positions().zip(&scales) {
                    for position in positions {
                        prop_assert!((values[position] - weights[position]).abs() <= 0.5001 * scale);
                    }
                    prop_assert!(!half_scales || f16::from_f32(*scale).to_f32() == *scale);
                }
                prop_assert!(codes.iter().all(|code| f32::from(code.unsigned_abs()) <= largest_code(bits)));
            }
        }

        #[test]
        fn least_squares_is_never_worse(weights in prop::collection::vec(-1e3_f32..1e3, 16), bits in 2_u8..=8, half_scales: bool) {
            let blocks = Blocks::of(&[2, 8], false, Granularity::Channel);
            let error = |range| {
                let scales = scales(&weights, &blocks, bits, range, half_scales);
                squares(&weights, &values(&codes(&weights, &blocks, &scales, bits), &blocks, &scales))
            };
            prop_assert!(error(WeightRange::LeastSquares) <= error(WeightRange::Max));
        }

        #[test]
        fn half_scales_are_rounded_up(scale in 1e-9_f32..70000.0) {
            let half = round_up(scale);
            prop_assert!(half >= scale.min(65504.0));
            let below = f16::from_bits(f16::from_f32(half).to_bits() - 1).to_f32();
            prop_assert!(below < scale);
        }

        #[test]
        fn codes_come_back(codes in prop::collection::vec(any::<i8>(), 0..70), bits in 2_u8..=8) {
            let codes: Vec<i8> = codes.iter().map(|code| code >> (8 - bits)).collect();
            let packed = pack(&codes, bits);
            prop_assert_eq!(packed.len(), packed_len(codes.len(), bits));
            prop_assert_eq!(unpack(&packed, bits, codes.len()), Some(codes));
        }
    }
}
