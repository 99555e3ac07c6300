//! Stochastic rounding of a number's bits.

/// The smallest normal number, by its bits.
pub(super) const SMALLEST: u32 = 0x0080_0000;
/// The largest number of bf16, by its bits in f32.
pub(super) const LARGEST: u32 = 0x7F7F_0000;

/// The bits of `value` in bf16: one of the two bf16 numbers beside it, chosen by 16 bits of noise. The mean over all noise is `value`.
/// Zero, numbers below the smallest normal one, numbers from the largest bf16 number on, infinities and NaN are rounded to the nearest
/// number.
#[inline(always)]
pub(super) fn rounded(value: f32, noise: u32) -> u16 {
    let bits = value.to_bits();
    let magnitude = bits & 0x7FFF_FFFF;
    let nearest = bits.wrapping_add(0x7FFF + ((bits >> 16) & 1));
    let nearest = if magnitude > 0x7F80_0000 { bits | 0x40_0000 } else { nearest };
    let is_ordinary = magnitude.wrapping_sub(SMALLEST) < LARGEST - SMALLEST;
    let rounded = if is_ordinary { bits.wrapping_add(noise) } else { nearest };
    (rounded >> 16) as u16
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use proptest::prelude::*;

    use super::*;

    fn at(value: f32, noise: u32) -> f32 {
        bf16::from_bits(rounded(value, noise)).to_f32()
    }

    proptest! {
        #[test]
        fn the_mean_over_all_noise_is_the_value(bits in SMALLEST..LARGEST, negative: bool) {
            let value = f32::from_bits(bits | u32::from(negative) << 31);
            // Sums of 65,536 numbers of 8 bits are exact in f64.
            let sum: f64 = (0..1 << 16).map(|noise| f64::from(at(value, noise))).sum();
            prop_assert_eq!(sum / 65_536.0, f64::from(value));
        }

        #[test]
        fn a_value_becomes_one_of_its_neighbours(bits in SMALLEST..LARGEST, noise in 0_u32..1 << 16) {
            let value = f32::from_bits(bits);
            let (below, above) = (f32::from_bits(bits & 0xFFFF_0000), f32::from_bits((bits & 0xFFFF_0000) + 0x1_0000));
            let got = at(value, noise);
            prop_assert!(got == below || (got == above && value != below));
        }

        #[test]
        fn other_numbers_go_to_the_nearest(
            magnitude in prop_oneof![0..SMALLEST, LARGEST..1 << 31],
            negative: bool,
            noise in 0_u32..1 << 16,
        ) {
            let value = f32::from_bits(magnitude | u32::from(negative) << 31);
            prop_assert_eq!(rounded(value, noise), bf16::from_f32(value).to_bits());
        }
    }

    #[test]
    fn special_numbers() {
        for noise in [0, 1, 0x7FFF, 0xFFFF] {
            assert_eq!(at(0.0, noise).to_bits(), 0);
            assert_eq!(at(-0.0, noise).to_bits(), 1 << 31);
            assert_eq!(at(1.5, noise), 1.5);
            assert_eq!(at(f32::INFINITY, noise), f32::INFINITY);
            assert_eq!(at(f32::NEG_INFINITY, noise), f32::NEG_INFINITY);
            assert!(
                [0x7FC0_0000, 0x7F80_0001, 0x7FFF_FFFF, 0xFF80_0001]
                    .map(f32::from_bits)
                    .map(|nan| at(nan, noise))
                    .iter()
                    .all(|x| x.is_nan())
            );
            assert_eq!(at(f32::from_bits(LARGEST), noise).to_bits(), LARGEST);
            assert_eq!(at(f32::MAX, noise), f32::INFINITY);
            assert_eq!(at(f32::from_bits(LARGEST + 0x7FFF), noise).to_bits(), LARGEST);
        }
    }
}
