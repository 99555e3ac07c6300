//! SwiGLU.

use burn::backend::Dispatch;
use burn::tensor::Tensor;

use super::graph::SwigluLayer;
use crate::check::{main_input, same_dtype, same_size};
use crate::error::Error;

/// SwiGLU: silu(gate) * up, the product in a gated feed-forward layer (Shazeer 2020). Keeps both inputs.
///
/// `gate` and `up` have the same shape, which may be any, and are f32, f16 or bf16. Computes in f32.
///
/// # Errors
/// [`Error::Size`], [`Error::DType`] and [`Error::UnsupportedDevice`], [`Error::UnsupportedDType`].
pub fn swiglu<const D: usize>(gate: Tensor<D>, up: Tensor<D>) -> Result<Tensor<D>, Error> {
    main_input("the gate", &gate)?;
    same_dtype(("the gate", gate.dtype()), ("the other input", up.dtype()))?;
    for (gate, up) in gate.dims().into_iter().zip(up.dims()) {
        same_size(("a dimension of the gate", gate), ("that of the other input", up))?;
    }
    Ok(Tensor::from_dispatch(<Dispatch as SwigluLayer>::swiglu_layer(gate.into_dispatch(), up.into_dispatch())))
}
