//! One weight as codes and scales.

use super::blocks::Blocks;
use super::codes::{self, WeightRange, largest_code, packed_len};
use crate::Error;

/// A weight as whole numbers of 2 to 8 bits and one scale for each block.
///
/// Codes are symmetric around 0 and leave out the most negative one: -127 to 127 with 8 bits, -7 to 7 with 4. A value is its code times
/// its block's scale, in f32. Scales that are to be stored as f16 are rounded up to f16 before the codes are computed, so what is stored
/// is what is used.
///
/// ```
/// use kiln_compression::{Blocks, Granularity, QuantizedWeight, WeightRange};
///
/// let blocks = Blocks::of(&[2, 3], true, Granularity::Channel);
/// let weight = QuantizedWeight::new(&[2, 3], &[0.6, -0.9, 0.0, 1.0, 2.0, 0.0], blocks, 4, WeightRange::Max, false)?;
/// assert_eq!(weight.codes(), [4, -3, 0, 7, 7, 0]);
/// assert_eq!(weight.scales(), [1.0 / 7.0, 2.0 / 7.0, 1.0]);
/// assert_eq!(weight.bytes(), 3 + 3 * 4);
/// # Ok::<(), kiln_compression::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct QuantizedWeight {
    shape: Vec<usize>,
    bits: u8,
    blocks: Blocks,
    codes: Vec<i8>,
    scales: Vec<f32>,
    half_scales: bool,
}

impl QuantizedWeight {
    /// Quantises the `values` of a weight of `shape`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidSetting`] if `bits` is not from 2 to 8 or the numbers of values do not agree, [`Error::NotFinite`] if a value is
    /// infinite or not a number.
    pub fn new(
        shape: &[usize],
        values: &[f32],
        blocks: Blocks,
        bits: u8,
        range: WeightRange,
        half_scales: bool,
    ) -> Result<Self, Error> {
        check_bits(bits)?;
        check_count("the number of values", values.len(), shape, &blocks)?;
        check_finite("a weight", values)?;
        let scales = codes::scales(values, &blocks, bits, range, half_scales);
        let codes = codes::codes(values, &blocks, &scales, bits);
        Ok(Self { shape: shape.to_vec(), bits, blocks, codes, scales, half_scales })
    }

    /// A weight of codes and scales that were read from a file.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidSetting`] if `bits` is not from 2 to 8, a code is outside of its range, the numbers of codes or scales do not
    /// agree with `shape` and `blocks`, or a scale is not positive, not finite or, with `half_scales`, not a number of 16 bits.
    pub(crate) fn from_codes(
        shape: &[usize],
        bits: u8,
        blocks: Blocks,
        codes: Vec<i8>,
        scales: Vec<f32>,
        half_scales: bool,
    ) -> Result<Self, Error> {
        check_bits(bits)?;
        check_count("the number of codes", codes.len(), shape, &blocks)?;
        if scales.len() != blocks.count() {
            return Err(Error::invalid("the number of scales", scales.len(), "one for each block"));
        }
        if let Some(code) = codes.iter().find(|code| f32::from(code.unsigned_abs()) > largest_code(bits)) {
            return Err(Error::invalid("a code", code, "at most 2^(bits - 1) - 1 in magnitude"));
        }
        if let Some(scale) = scales.iter().find(|scale| !(**scale > 0.0 && scale.is_finite())) {
            return Err(Error::invalid("a scale", scale, "a positive finite number"));
        }
        if half_scales && let Some(scale) = scales.iter().find(|scale| half::f16::from_f32(**scale).to_f32() != **scale)
        {
            return Err(Error::invalid("a scale", scale, "a number of 16 bits"));
        }
        Ok(Self { shape: shape.to_vec(), bits, blocks, codes, scales, half_scales })
    }

    /// The shape of the weight.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The bits of a code.
    pub fn bits(&self) -> u8 {
        self.bits
    }

    /// Which values share a scale.
    pub fn blocks(&self) -> Blocks {
        self.blocks
    }

    /// One code for each value, in the order of the weight.
    pub fn codes(&self) -> &[i8] {
        &self.codes
    }

    /// One scale for each block, as `[groups, 1, columns]`.
    pub fn scales(&self) -> &[f32] {
        &self.scales
    }

    /// Whether scales are stored in 16 bits.
    pub fn half_scales(&self) -> bool {
        self.half_scales
    }

    /// The values: codes times scales.
    pub fn dequantize(&self) -> Vec<f32> {
        codes::values(&self.codes, &self.blocks, &self.scales)
    }

    /// The bytes of packed codes, `bits` bits each, and scales.
    pub fn bytes(&self) -> u64 {
        packed_bytes(self.codes.len(), self.blocks.count(), self.bits, self.half_scales)
    }
}

/// The bytes of `values` packed codes and their scales.
pub(crate) fn packed_bytes(values: usize, scales: usize, bits: u8, half_scales: bool) -> u64 {
    let codes = packed_len(values, bits);
    (codes + scales * if half_scales { 2 } else { 4 }) as u64
}

pub(crate) fn check_bits(bits: u8) -> Result<(), Error> {
    match bits {
        2..=8 => Ok(()),
        _ => Err(Error::invalid("the bits of a weight", bits, "2 to 8")),
    }
}

pub(crate) fn check_finite(what: &'static str, values: &[f32]) -> Result<(), Error> {
    match values.iter().find(|value| !value.is_finite()) {
        Some(value) => Err(Error::NotFinite { what, value: value.to_string() }),
        None => Ok(()),
    }
}

fn check_count(what: &'static str, count: usize, shape: &[usize], blocks: &Blocks) -> Result<(), Error> {
    // The numbers may come from a file, and then be any.
    let product = |sides: &[usize]| sides.iter().try_fold(1_usize, |product, side| product.checked_mul(*side));
    let blocks = [blocks.groups, blocks.columns, blocks.length];
    match product(&blocks) == Some(count) && product(&blocks[..2]).is_some() && product(shape) == Some(count) {
        true => Ok(()),
        false => Err(Error::invalid(what, count, "as many as the shape and the blocks have")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::blocks::Granularity;
    use super::*;

    fn weight(bits: u8, half_scales: bool) -> Result<QuantizedWeight, Error> {
        let values: Vec<f32> = (0..12).map(|index| (index as f32).cos()).collect();
        let blocks = Blocks::of(&[3, 4], true, Granularity::Channel);
        QuantizedWeight::new(&[3, 4], &values, blocks, bits, WeightRange::Max, half_scales)
    }

    #[test]
    fn codes_and_scales_make_the_same_weight() {
        for (bits, half_scales, bytes) in
            [(8, false, 12 + 16), (8, true, 12 + 8), (4, true, 6 + 8), (3, false, 5 + 16), (2, false, 3 + 16)]
        {
            let weight = weight(bits, half_scales).unwrap();
            let (codes, scales) = (weight.codes().to_vec(), weight.scales().to_vec());
            let again =
                QuantizedWeight::from_codes(&[3, 4], bits, weight.blocks(), codes, scales, half_scales).unwrap();
            assert_eq!(again, weight);
            assert_eq!(weight.bytes(), bytes);
            // A weight that was quantised is quantised to itself.
            let blocks = weight.blocks();
            let twice =
                QuantizedWeight::new(&[3, 4], &weight.dequantize(), blocks, bits, WeightRange::Max, half_scales)
                    .unwrap();
            assert_eq!(twice.codes(), weight.codes());
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for bits in [0, 1, 9, 16] {
            assert!(matches!(weight(bits, false), Err(Error::InvalidSetting { .. })), "{bits}");
        }
        let blocks = Blocks::of(&[2], false, Granularity::Tensor);
        let new = |values: &[f32]| QuantizedWeight::new(&[2], values, blocks, 8, WeightRange::Max, false);
        assert!(matches!(new(&[1.0]), Err(Error::InvalidSetting { .. })));
        assert!(matches!(new(&[1.0, f32::NAN]), Err(Error::NotFinite { .. })));
        assert!(matches!(new(&[1.0, f32::INFINITY]), Err(Error::NotFinite { .. })));
        let from = |codes: &[i8], scales: &[f32], half| {
            QuantizedWeight::from_codes(&[2], 4, blocks, codes.to_vec(), scales.to_vec(), half)
        };
        assert!(from(&[7, -7], &[0.5], true).is_ok());
        for (codes, scales, half) in [
            (&[8, 0][..], &[1.0][..], false),
            (&[-8, 0], &[1.0], false),
            (&[0], &[1.0], false),
            (&[0, 0], &[1.0, 1.0], false),
            (&[0, 0], &[0.0], false),
            (&[0, 0], &[f32::NAN], false),
            (&[0, 0], &[0.1], true),
        ] {
            assert!(matches!(from(codes, scales, half), Err(Error::InvalidSetting { .. })), "{codes:?} {scales:?}");
        }
    }
}
