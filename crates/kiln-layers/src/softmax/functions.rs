//! Softmax over the last dimension.

use burn::backend::Dispatch;
use burn::tensor::Tensor;

use super::graph::SoftmaxLayer;
use crate::check::main_input;
use crate::error::Error;

/// Softmax: exp(x) / sum of exp(x) over the last dimension, computed from the difference to the largest value. Keeps its output.
///
/// `x` is `[.., classes]` in f32, f16 or bf16. Computes in f32. A row whose largest value is not finite gives NaN, as in torch.
///
/// # Errors
/// [`Error::UnsupportedDevice`], [`Error::UnsupportedDType`].
pub fn softmax<const D: usize>(x: Tensor<D>) -> Result<Tensor<D>, Error> {
    main_input("the input", &x)?;
    Ok(Tensor::from_dispatch(<Dispatch as SoftmaxLayer>::softmax_layer(x.into_dispatch())))
}
