//! Batch norm and the convolution before or after it in one operation, squeeze-and-excitation between them, and the end of a residual
//! block.

mod graph;

use burn::nn::BatchNorm;
use burn::nn::conv::Conv2d;
use burn::tensor::{Device, Tensor};
use kiln_operations::{all, run};

use crate::batch_norm::{NormActivation, Pass};
use crate::check::{result_device, same_dtype, same_size};
use crate::conv2d::{Convolution, convolution};
use crate::error::Error;
use graph::{Conv2dNorm, ExcitedConv2d, NormConv2d, ResidualEnd};

/// Batch norm, ReLU and the convolution after them in one operation. It has the bits of
/// [`conv2d`](crate::conv2d)`(conv, `[`batch_norm_relu`](crate::batch_norm_relu)`(norm, x))`.
///
/// Keeps only `x`. The output of ReLU, which the convolution would keep, is computed again in the backward pass, with one multiply-add
/// for each value. A chain of convolutions with norms between them thus keeps one tensor for each convolution instead of two.
///
/// # Errors
/// Those of [`batch_norm_relu`](crate::batch_norm_relu) and [`conv2d`](crate::conv2d).
pub fn batch_norm_relu_conv2d(norm: &BatchNorm, conv: &Conv2d, x: Tensor<4>) -> Result<Tensor<4>, Error> {
    batch_norm_activated_conv2d(norm, NormActivation::Relu, conv, x)
}

/// Batch norm, its activation and the convolution after them in one operation. It has the bits of
/// [`conv2d`](crate::conv2d)`(conv, `[`batch_norm_activated`](crate::batch_norm_activated)`(norm, activation, x))`, and keeps as little
/// as [`batch_norm_relu_conv2d`].
///
/// # Errors
/// Those of [`batch_norm_activated`](crate::batch_norm_activated) and [`conv2d`](crate::conv2d).
pub fn batch_norm_activated_conv2d(
    norm: &BatchNorm,
    activation: NormActivation,
    conv: &Conv2d,
    x: Tensor<4>,
) -> Result<Tensor<4>, Error> {
    // The convolution's input has the shape, dtype and device of the norm's input.
    let convolution = convolution(conv, &x)?;
    let pass = Pass::of(norm, &x, activation)?;
    let operation = NormConv2d { norm: pass.settings, geometry: convolution.geometry };
    let kernel = [convolution.weight, convolution.bias];
    let inputs = [x.into_dispatch()].into_iter().chain(pass.channels).chain(kernel).collect();
    let [y, mean, variance] = all(run(operation, inputs));
    pass.updates.apply([mean, variance]);
    Ok(Tensor::from_dispatch(y))
}

/// Squeeze-and-excitation (Hu et al. 2018) between a norm and a convolution: [`conv2d`](crate::conv2d)`(conv, y * scale(mean of y))` with
/// y = [`batch_norm_activated`](crate::batch_norm_activated)`(norm, activation, x)`.
///
/// `scale` gets the mean of each channel of each image, `[images, channels, 1, 1]` in the dtype of `x`, and returns a factor for each, of
/// the same shape and dtype. Keeps `x`, the factors, and the tensors that `scale` keeps. Neither y nor its product with the factors is
/// kept. The backward pass computes them again, and takes the gradients of mean and product through the norm one after the other. The
/// running statistics are updated once.
///
/// # Errors
/// Those of [`batch_norm_activated_conv2d`], and [`Error::Size`] and [`Error::DType`] when the factors differ from the means.
pub fn batch_norm_excited_conv2d(
    norm: &BatchNorm,
    activation: NormActivation,
    conv: &Conv2d,
    x: Tensor<4>,
    scale: impl FnOnce(Tensor<4>) -> Tensor<4>,
) -> Result<Tensor<4>, Error> {
    let convolution = convolution(conv, &x)?;
    let [images, channels, ..] = x.dims();
    let pass = Pass::of(norm, &x, activation)?;
    // Both passes through the norm begin with the same running statistics, and the first pass updates them.
    let (norm, settings) = (pass.channels.clone(), pass.settings);
    let means = pass.run(x.clone(), None).flatten::<3>(2, 3).mean_dim(2).reshape([images, channels, 1, 1]);
    let scale = scale(means);
    same_dtype(("the input", x.dtype()), ("the scale", scale.dtype()))?;
    for (expected, of_scale) in [images, channels, 1, 1].into_iter().zip(scale.dims()) {
        same_size(("a dimension of the means", expected), ("the same dimension of the scale", of_scale))?;
    }
    let operation = ExcitedConv2d { norm: settings, geometry: convolution.geometry };
    let kernel = [convolution.weight, convolution.bias];
    let inputs = [x, scale].map(Tensor::into_dispatch).into_iter().chain(norm).chain(kernel).collect();
    Ok(Tensor::from_dispatch(run(operation, inputs).remove(0)))
}

/// A convolution and the batch norm after it in one operation. It has the bits of
/// [`batch_norm`](crate::batch_norm)`(norm, `[`conv2d`](crate::conv2d)`(conv, x))`.
///
/// Keeps only `x`. The output of the convolution, which the norm would keep, is computed again in the backward pass by one more forward
/// pass of the convolution. This pays for a convolution with few input channels and large images, as at the start of a network, and for
/// one whose input is kept for other layers, as beside a residual block.
///
/// # Errors
/// Those of [`batch_norm`](crate::batch_norm) and [`conv2d`](crate::conv2d).
pub fn conv2d_batch_norm(conv: &Conv2d, norm: &BatchNorm, x: Tensor<4>) -> Result<Tensor<4>, Error> {
    conv2d_batch_norm_activated(conv, norm, NormActivation::None, x)
}

/// A convolution, and the batch norm and ReLU after it, in one operation. It has the bits of
/// [`batch_norm_relu`](crate::batch_norm_relu)`(norm, `[`conv2d`](crate::conv2d)`(conv, x))`, and keeps as little as
/// [`conv2d_batch_norm`].
///
/// # Errors
/// Those of [`conv2d_batch_norm`].
pub fn conv2d_batch_norm_relu(conv: &Conv2d, norm: &BatchNorm, x: Tensor<4>) -> Result<Tensor<4>, Error> {
    conv2d_batch_norm_activated(conv, norm, NormActivation::Relu, x)
}

/// A convolution, and the batch norm and its activation after it, in one operation. It has the bits of
/// [`batch_norm_activated`](crate::batch_norm_activated)`(norm, activation, `[`conv2d`](crate::conv2d)`(conv, x))`, and keeps as little
/// as [`conv2d_batch_norm`].
///
/// # Errors
/// Those of [`batch_norm_activated`](crate::batch_norm_activated) and [`conv2d`](crate::conv2d).
pub fn conv2d_batch_norm_activated(
    conv: &Conv2d,
    norm: &BatchNorm,
    activation: NormActivation,
    x: Tensor<4>,
) -> Result<Tensor<4>, Error> {
    let convolution = convolution(conv, &x)?;
    let device = result_device(x.device(), [conv.weight.device()]);
    let pass = after(&convolution, norm, &x, &device, activation)?;
    let operation = Conv2dNorm { geometry: convolution.geometry, norm: pass.settings };
    let inputs = [x.into_dispatch(), convolution.weight, convolution.bias].into_iter().chain(pass.channels).collect();
    let [y, mean, variance] = all(run(operation, inputs));
    pass.updates.apply([mean, variance]);
    Ok(Tensor::from_dispatch(y))
}

/// Prepares the norm after a convolution of `x`.
fn after<'a>(
    convolution: &Convolution,
    norm: &'a BatchNorm,
    x: &Tensor<4>,
    device: &Device,
    activation: NormActivation,
) -> Result<Pass<'a>, Error> {
    let shape = convolution.output(&x.shape());
    let channels = ("the number of channels of the convolution's output", shape[1]);
    Pass::of_channels(norm, channels, shape.num_elements() == 0, device, activation)
}

/// The end of a residual block in one operation: batch norm, ReLU, convolution, batch norm, residual and ReLU. It has the bits of
/// [`batch_norm_add_relu`](crate::batch_norm_add_relu)`(last_norm, `[`batch_norm_relu_conv2d`]`(norm, conv, x), residual)`.
///
/// `residual` has the shape of the convolution's output and the dtype of `x`. Keeps `x` and the output, which the next layer usually
/// keeps as well. The output of the convolution is computed again in the backward pass. A chain of such blocks keeps one tensor for each
/// convolution except the last of a block, at the cost of one more forward pass of that convolution.
///
/// # Errors
/// Those of [`batch_norm_relu_conv2d`] and [`batch_norm_add_relu`](crate::batch_norm_add_relu), and [`Error::InvalidSetting`] when both
/// norms are one module, whose running statistics would change twice.
pub fn residual_end(
    norm: &BatchNorm,
    conv: &Conv2d,
    last_norm: &BatchNorm,
    x: Tensor<4>,
    residual: Tensor<4>,
) -> Result<Tensor<4>, Error> {
    let convolution = convolution(conv, &x)?;
    let pass = Pass::of(norm, &x, NormActivation::Relu)?;
    let device = result_device(x.device(), [norm.gamma.device(), conv.weight.device()]);
    let last = after(&convolution, last_norm, &x, &device, NormActivation::Relu)?;
    if norm.gamma.id == last_norm.gamma.id {
        let expected = "another module than the first norm";
        return Err(Error::InvalidSetting { name: "the last norm", value: "the first norm".to_owned(), expected });
    }
    same_dtype(("the input", x.dtype()), ("the residual", residual.dtype()))?;
    for (of_output, of_residual) in convolution.output(&x.shape()).iter().zip(residual.dims()) {
        let output = ("a dimension of the convolution's output", *of_output);
        same_size(output, ("the same dimension of the residual", of_residual))?;
    }
    let operation = ResidualEnd { norm: pass.settings, geometry: convolution.geometry, last: last.settings };
    let inputs = [x, residual].map(Tensor::into_dispatch).into_iter().chain(pass.channels);
    let inputs = inputs.chain([convolution.weight, convolution.bias]).chain(last.channels).collect();
    let [y, mean, variance, last_mean, last_variance] = all(run(operation, inputs));
    pass.updates.apply([mean, variance]);
    last.updates.apply([last_mean, last_variance]);
    Ok(Tensor::from_dispatch(y))
}
