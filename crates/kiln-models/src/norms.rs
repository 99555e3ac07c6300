//! Norms that compute in the dtype of their own parameters.

use burn::nn::{BatchNorm, LayerNorm};
use burn::tensor::Tensor;

/// Runs a layer norm in the dtype of its own parameters and casts the result back to the dtype of `x`. A norm with f32 parameters thus
/// computes in f32 between layers that compute in 16 bits.
pub(crate) fn layer_norm<const D: usize>(norm: &LayerNorm, x: Tensor<D>) -> Tensor<D> {
    let dtype = x.dtype();
    norm.forward(x.cast(norm.gamma.val().dtype())).cast(dtype)
}

/// Runs a batch norm in the dtype of its own parameters and casts the result back to the dtype of `x`.
pub(crate) fn batch_norm<const D: usize>(norm: &BatchNorm, x: Tensor<D>) -> Tensor<D> {
    let dtype = x.dtype();
    norm.forward(x.cast(norm.gamma.val().dtype())).cast(dtype)
}
