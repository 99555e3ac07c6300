use burn::nn::{BatchNorm, LayerNorm};
use burn::tensor::Tensor;

/// Runs a norm in the dtype of its own parameters and returns the activations' dtype: f32 between layers that compute in
/// 16 bits, when the norm's parameters were kept in f32.
pub(crate) fn layer_norm<const D: usize>(norm: &LayerNorm, x: Tensor<D>) -> Tensor<D> {
    let dtype = x.dtype();
    norm.forward(x.cast(norm.gamma.val().dtype())).cast(dtype)
}

/// The same for batch-norm.
pub(crate) fn batch_norm<const D: usize>(norm: &BatchNorm, x: Tensor<D>) -> Tensor<D> {
    let dtype = x.dtype();
    norm.forward(x.cast(norm.gamma.val().dtype())).cast(dtype)
}
