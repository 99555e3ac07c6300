//! Values of many magnitudes, whose sum depends on the order of summation.

use burn::tensor::{Device, Tensor};

/// A value of a replica, a function of all arguments.
pub(crate) fn value(seed: u64, rank: usize, index: usize) -> f32 {
    // SplitMix64.
    let mut z = (seed << 40 ^ (rank as u64) << 32 ^ index as u64).wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^= z >> 31;
    let magnitude = ((z >> 32) % 24) as i32 - 12;
    ((z & 0xFFFF) as f32 - 32768.0) * 2_f32.powi(magnitude)
}

pub(crate) fn values(seed: u64, rank: usize, length: usize) -> Vec<f32> {
    (0..length).map(|index| value(seed, rank, index)).collect()
}

/// The sum over the replicas: of each block of `inner` ranks first.
pub(crate) fn serial_sum(seed: u64, replicas: usize, inner: usize, length: usize) -> Vec<f32> {
    let block = |outer: usize, index: usize| {
        let values = (0..inner).map(|rank| value(seed, outer * inner + rank, index));
        values.reduce(|sum, next| sum + next).unwrap()
    };
    let sum = |index| (0..replicas / inner).map(|outer| block(outer, index)).reduce(|sum, next| sum + next).unwrap();
    (0..length).map(sum).collect()
}

pub(crate) fn tensor(values: &[f32]) -> Tensor<1> {
    Tensor::from_floats(values, &Device::flex())
}

pub(crate) fn bits<const D: usize>(tensor: &Tensor<D>) -> Vec<u32> {
    tensor.to_data().iter::<f32>().map(f32::to_bits).collect()
}

pub(crate) fn bits_of(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}
