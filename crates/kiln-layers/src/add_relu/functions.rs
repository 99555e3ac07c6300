//! Residual addition and the ReLU after it.

use burn::backend::Dispatch;
use burn::tensor::Tensor;

use super::graph::AddReluLayer;
use crate::check::{main_input, same_dtype, same_size};
use crate::error::Error;

/// max(a + b, 0) in one operation: the end of a residual block. The sum itself is never in memory.
///
/// `a` and `b` have one shape and one dtype: f32, f16 or bf16. Keeps only the output, which the next layer usually keeps as well. Both
/// gradients are the same tensor, in the memory of the output's gradient.
///
/// # Errors
/// [`Error::Size`], [`Error::DType`], [`Error::UnsupportedDevice`] and [`Error::UnsupportedDType`].
pub fn add_relu<const D: usize>(a: Tensor<D>, b: Tensor<D>) -> Result<Tensor<D>, Error> {
    main_input("the first summand", &a)?;
    same_dtype(("the first summand", a.dtype()), ("the second summand", b.dtype()))?;
    for (of_a, of_b) in a.dims().into_iter().zip(b.dims()) {
        same_size(("a dimension of the first summand", of_a), ("the same dimension of the second summand", of_b))?;
    }
    Ok(Tensor::from_dispatch(<Dispatch as AddReluLayer>::add_relu_layer(a.into_dispatch(), b.into_dispatch())))
}
