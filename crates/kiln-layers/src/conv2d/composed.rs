//! Convolution by a backend's own convolutions. It saves nothing besides the input.
//!
//! Peak memory in addition to inputs and outputs: the memory that the backend's own convolutions need. The gradients of input and weight
//! also make a tensor of their shape, only to pass on that shape.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::Shape;
use burn::tensor::ops::ConvOptions;

use super::Geometry;
use crate::composed::{Wide, full};

/// The geometry in burn's words.
pub(super) fn options(geometry: Geometry) -> ConvOptions<2> {
    let Geometry { stride, before, after, dilation, groups } = geometry;
    let padding = [0, 1].map(|side| (before[side], after[side]));
    ConvOptions { stride, padding, dilation, groups }
}

pub(super) fn forward<B: Backend>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: FloatTensor<B>,
    geometry: Geometry,
) -> FloatTensor<B> {
    let bias = (bias.shape().num_elements() > 0).then_some(bias);
    B::conv2d(x, weight, bias, options(geometry))
}

/// The gradient of an input of `shape`.
pub(super) fn input_gradient<B: Backend>(
    weight: FloatTensor<B>,
    gradient: FloatTensor<B>,
    shape: Shape,
    geometry: Geometry,
) -> FloatTensor<B> {
    let like_input = full::<B>(shape, 0.0, &gradient.device(), gradient.dtype());
    B::conv2d_x_backward(like_input, weight, gradient, options(geometry))
}

/// The gradient of a weight of `shape`.
pub(super) fn weight_gradient<B: Backend>(
    x: FloatTensor<B>,
    gradient: FloatTensor<B>,
    shape: Shape,
    geometry: Geometry,
) -> FloatTensor<B> {
    let like_weight = full::<B>(shape, 0.0, &gradient.device(), gradient.dtype());
    B::conv2d_weight_backward(x, like_weight, gradient, options(geometry))
}

/// The sum over each channel.
pub(super) fn bias_gradient<B: Backend>(gradient: FloatTensor<B>) -> FloatTensor<B> {
    let (dtype, channels) = (gradient.dtype(), gradient.shape()[1]);
    Wide::<B>::of(&gradient).sum(&[3, 2, 0]).reshape([channels]).narrow(dtype)
}
