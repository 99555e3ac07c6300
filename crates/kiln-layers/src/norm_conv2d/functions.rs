//! Batch norm, ReLU and the convolution after them in one operation, and with what ends a residual block.

use burn::backend::Dispatch;
use burn::nn::BatchNorm;
use burn::nn::conv::Conv2d;
use burn::tensor::Tensor;

use super::graph::NormConv2dLayer;
use crate::batch_norm::{NormActivation, Pass};
use crate::check::{same_dtype, same_size};
use crate::conv2d::convolution;
use crate::error::Error;

/// [`conv2d`](crate::conv2d)`(conv, `[`batch_norm_relu`](crate::batch_norm_relu)`(norm, x))` in one operation, with the same bits.
///
/// Keeps `x` alone: the output of ReLU, which the convolution would keep, is computed again in the backward pass, one multiply-add a
/// value. A chain of convolutions with norms between them thus keeps one tensor for each convolution where others keep two.
///
/// # Errors
/// Those of [`batch_norm_relu`](crate::batch_norm_relu) and [`conv2d`](crate::conv2d).
pub fn batch_norm_relu_conv2d(norm: &BatchNorm, conv: &Conv2d, x: Tensor<4>) -> Result<Tensor<4>, Error> {
    // The convolution's input has shape, dtype and device of the norm's.
    let convolution = convolution(conv, &x)?;
    let pass = Pass::of(norm, &x, NormActivation::Relu)?;
    let (y, mean, variance) = Dispatch::norm_conv2d_layer(x.into_dispatch(), pass.parameters, convolution);
    pass.updates.apply(mean, variance);
    Ok(Tensor::from_dispatch(y))
}

/// [`batch_norm_add_relu`](crate::batch_norm_add_relu)`(last, `[`batch_norm_relu_conv2d`]`(norm, conv, x), residual)` in one operation,
/// with the same bits: the end of a residual block.
///
/// `residual`: of the shape of the convolution's output and the dtype of `x`. Keeps `x` and the output, which the next layer usually keeps
/// as well. The output of the convolution is computed again in the backward pass: a chain of such blocks keeps one tensor for each
/// convolution but the last of a block, and pays for that one more forward pass of that convolution.
///
/// # Errors
/// Those of [`batch_norm_relu_conv2d`] and [`batch_norm_add_relu`](crate::batch_norm_add_relu).
pub fn residual_end(
    norm: &BatchNorm,
    conv: &Conv2d,
    last: &BatchNorm,
    x: Tensor<4>,
    residual: Tensor<4>,
) -> Result<Tensor<4>, Error> {
    let convolution = convolution(conv, &x)?;
    let pass = Pass::of(norm, &x, NormActivation::Relu)?;
    let shape = convolution.output(&x.shape());
    let channels = ("the number of channels of the convolution's output", shape[1]);
    let last = Pass::of_channels(last, channels, shape.num_elements() == 0, &x.device(), NormActivation::Relu)?;
    same_dtype(("the input", x.dtype()), ("the residual", residual.dtype()))?;
    for (of_output, of_residual) in shape.iter().zip(residual.dims()) {
        let output = ("a dimension of the convolution's output", *of_output);
        same_size(output, ("the same dimension of the residual", of_residual))?;
    }
    let (x, residual) = (x.into_dispatch(), residual.into_dispatch());
    let (y, mean, variance, last_mean, last_variance) =
        Dispatch::residual_end_layer(x, residual, pass.parameters, convolution, last.parameters);
    pass.updates.apply(mean, variance);
    last.updates.apply(last_mean, last_variance);
    Ok(Tensor::from_dispatch(y))
}
