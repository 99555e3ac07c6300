//! Tools to compare a function and its gradients with a reference.

use burn::tensor::{DType, Device, Tensor, TensorData};
use proptest::prelude::ProptestConfig;

/// A configuration with `cases` random cases, or with as many as the environment says.
pub(crate) fn config(cases: u32) -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    ProptestConfig { cases: asked.unwrap_or(cases), failure_persistence: None, ..ProptestConfig::default() }
}

/// Numbers that look random and are always the same.
pub(crate) fn numbers(count: usize, seed: u64, scale: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((state >> 40) as f32 / (1 << 23) as f32 - 1.0) * scale
    };
    (0..count).map(next).collect()
}

/// A tensor of such numbers in `dtype`.
pub(crate) fn tensor<const D: usize>(
    shape: [usize; D],
    seed: u64,
    scale: f32,
    dtype: DType,
    device: &Device,
) -> Tensor<D> {
    let count = shape.iter().product();
    let data = TensorData::new(numbers(count, seed, scale), shape);
    Tensor::<D>::from_data(data, (device, DType::F32)).cast(dtype)
}

/// All values as f64.
pub(crate) fn values<const D: usize>(tensor: &Tensor<D>) -> Vec<f64> {
    tensor.clone().cast(DType::F32).into_data().iter::<f64>().collect()
}

/// The largest difference, relative to the largest value of `expected`.
pub(crate) fn distance(got: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(got.len(), expected.len());
    let largest = expected.iter().fold(1e-6f64, |largest, value| largest.max(value.abs()));
    let far = got.iter().zip(expected).map(|(got, expected)| (got - expected).abs());
    far.fold(0.0, |far, next| if next.is_nan() { f64::INFINITY } else { f64::max(far, next) }) / largest
}

/// The largest difference that a result in `dtype` may have from a reference that is computed in f32 from the same values: some roundings
/// of the result.
pub(crate) fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => 3e-5,
        DType::F16 => 2e-3,
        _ => 1.6e-2,
    }
}
