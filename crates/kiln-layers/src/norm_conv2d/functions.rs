//! Batch norm, ReLU and the convolution after them in one operation, on burn's modules.

use burn::backend::Dispatch;
use burn::nn::BatchNorm;
use burn::nn::conv::Conv2d;
use burn::tensor::Tensor;

use super::graph::NormConv2dLayer;
use crate::batch_norm::{NormActivation, Pass, update};
use crate::conv2d::parameters;
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
    let (kernel, kernel_bias, geometry) = parameters(conv, &x)?;
    let Pass { weight, bias, mean, variance, settings, updates } = Pass::of(norm, &x, NormActivation::Relu)?;
    let (y, mean, variance) = Dispatch::norm_conv2d_layer(
        x.into_dispatch(),
        weight.into_dispatch(),
        bias.into_dispatch(),
        mean.into_dispatch(),
        variance.into_dispatch(),
        kernel.into_dispatch(),
        kernel_bias.into_dispatch(),
        settings,
        geometry,
    );
    if updates {
        update(norm, Tensor::from_dispatch(mean), Tensor::from_dispatch(variance));
    }
    Ok(Tensor::from_dispatch(y))
}
