//! Tensors of numbers, and their values.

use burn::optim::{RecordState, StateSink};
use burn::tensor::{DType, Device, Tensor, TensorData};

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

/// The bytes of a tensor.
pub(crate) fn bits<const D: usize>(tensor: &Tensor<D>) -> Vec<u8> {
    tensor.to_data().as_bytes().to_vec()
}

/// The leaves of a state's record: names, and tensors by their bits.
pub(crate) fn record(state: &impl RecordState) -> Vec<(String, Vec<u8>)> {
    let mut sink = StateSink::default();
    state.state_flatten("p", &mut sink);
    let tensors = sink.tensors.into_iter().map(|(name, data)| (name, data.as_bytes().to_vec()));
    let scalars = sink.scalars.into_iter().map(|(name, value)| (name, format!("{value:?}").into_bytes()));
    tensors.chain(scalars).collect()
}
