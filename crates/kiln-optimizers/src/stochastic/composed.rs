//! Stochastic rounding by burn's operations, which cannot look at the bits of a float.

use burn::tensor::{DType, FloatDType, Int, Tensor};

use super::bits::{LARGEST, SMALLEST};
use super::noise::{FACTORS, Key};

/// Rounds values to bf16, with the bits of [`rounded`](super::bits::rounded). Scratch memory: about six tensors in f32, if the device
/// does not join operations.
pub(super) fn round<const D: usize>(values: Tensor<D>, first: usize, key: Key) -> Tensor<D> {
    let nearest = values.clone().cast(DType::BF16).cast(DType::F32);
    let distance = values.clone() - nearest.clone();
    // The neighbour of `nearest` on the side of the value: 1.25 / 256 of a number is between a half and one and a half of the spacing of
    // bf16 there.
    let aside = nearest.clone().abs() * (1.25 / 256.0);
    let aside = aside.clone().mask_where(distance.clone().lower_elem(0.0), -aside);
    let other = (nearest.clone() + aside).cast(DType::BF16).cast(DType::F32);
    // The number of the 65,536 values of noise at which the value goes to the neighbour.
    let share = (distance.clone() / (other.clone() - nearest.clone()) * 65_536.0).round();
    let noise = noise(&values, first, key);
    // Large noise carries over in the bits, away from zero. So small noise leads to the neighbour if it is nearer to zero, and large
    // noise otherwise.
    let is_inward = (distance * values.clone().sign()).lower_elem(0.0);
    let noise = (-noise.clone() + 65_535.0).mask_where(is_inward, noise);
    let magnitude = values.abs();
    let is_ordinary = magnitude
        .clone()
        .greater_equal_elem(f32::from_bits(SMALLEST))
        .bool_and(magnitude.lower_elem(f32::from_bits(LARGEST)));
    let to_other = noise.lower(share).bool_and(is_ordinary);
    nearest.mask_where(to_other, other).cast(DType::BF16)
}

/// The noise of each element, as a number in f32.
fn noise<const D: usize>(values: &Tensor<D>, first: usize, key: Key) -> Tensor<D> {
    let (count, device) = (values.shape().num_elements(), values.device());
    let indices = Tensor::<1, Int>::arange(0..count as i64, (&device, DType::U32)).add_scalar(first as u32);
    let mut left = indices.clone().bitwise_right_shift_scalar(16);
    let mut right = indices.bitwise_and_scalar(0xFFFF);
    for (key, factor) in key.0.into_iter().zip(FACTORS) {
        let mixed = right.clone().bitwise_xor_scalar(key).mul_scalar(factor);
        let mixed = mixed.bitwise_right_shift_scalar(8).bitwise_and_scalar(0xFFFF);
        (left, right) = (right, left.bitwise_xor(mixed));
    }
    right.cast(FloatDType::F32).reshape(values.dims())
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, TensorData};

    use super::super::bits::rounded;
    use super::*;

    #[test]
    fn bits_are_those_of_the_rule() {
        // All binades, both signs, bf16 numbers and numbers beside them, and special numbers.
        let mut bits: Vec<u32> = (0..1 << 16).map(|i: u32| i << 16 | (i.wrapping_mul(0x9E37) & 0xFFFF)).collect();
        bits.extend((0..1 << 16).map(|i: u32| i << 16));
        bits.extend((0..1 << 16).flat_map(|i: u32| [i << 16 | 1, i << 16 | 0x8000, i << 16 | 0xFFFF]));
        let values: Vec<f32> = bits.iter().map(|bits| f32::from_bits(*bits)).collect();
        for (first, key) in [(0, Key::new(0, 0, 0)), (70_000, Key::new(1, 2, 3)), (65_535, Key::new(9, 9, 9))] {
            let tensor = Tensor::<1>::from_data(TensorData::from(values.as_slice()), &Device::flex());
            let got = round(tensor.reshape([bits.len() / 64, 64]), first, key).into_data();
            let got = got.as_slice::<half::bf16>().unwrap();
            for (index, (got, value)) in got.iter().zip(&values).enumerate() {
                let expected = rounded(*value, key.noise((first + index) as u32));
                let same = got.to_bits() == expected || (got.is_nan() && value.is_nan());
                assert!(same, "{value:e} ({:#x}): {:#x}, expected {expected:#x}", value.to_bits(), got.to_bits());
            }
        }
    }
}
