//! Forward and backward pass, from the kernels of convolutions.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{DType, Shape};

use super::phases::{from_squares, phases, phases_backward, to_squares};
use crate::composed::{Wide, cat, full, slice};
use crate::conv2d::{Geometry, conv2d_bias_gradient, conv2d_forward, conv2d_input_gradient, conv2d_weight_gradient};
use kiln_operations::KernelBackend;

/// The geometry, which the public function has checked.
const SAME: Geometry = Geometry::SAME;

/// Whether `x` is doubled in memory. If it is not, there are 27 more weights for each pair of channels. In a small image of many outputs,
/// three more pixels for each pixel take less. The number of images does not matter, so that all batches are computed alike.
fn is_doubled(x: &Shape, weight: &Shape) -> bool {
    x[2] * x[3] < 9 * weight[0]
}

/// The part of a weight that reads `x`, and the part that reads the other input.
fn parts<B: Backend>(weight: &FloatTensor<B>, channels: usize) -> [FloatTensor<B>; 2] {
    let shape = weight.shape();
    [0..channels, channels..shape[1]].map(|inputs| slice::<B>(weight, &[0..shape[0], inputs]))
}

pub(super) fn forward<B: KernelBackend>(
    x: FloatTensor<B>,
    skip: Option<FloatTensor<B>>,
    weight: FloatTensor<B>,
    bias: FloatTensor<B>,
) -> FloatTensor<B> {
    let [own, other] = parts::<B>(&weight, x.shape()[1]);
    let (device, dtype) = (bias.device(), bias.dtype());
    let y = match is_doubled(&x.shape(), &weight.shape()) {
        true => conv2d_forward::<B>(doubled::<B>(x), own, bias, SAME),
        false => {
            // Each output's bias is repeated four times.
            let values = bias.shape()[0];
            let bias = B::float_reshape(bias, Shape::new([values, 1]));
            let bias = B::float_reshape(B::float_expand(bias, Shape::new([values, 4])), Shape::new([4 * values]));
            to_squares::<B>(conv2d_forward::<B>(x, phases::<B>(&own), bias, SAME))
        }
    };
    match skip {
        Some(skip) => {
            let none = full::<B>(Shape::new([0]), 0.0, &device, dtype);
            B::float_add(y, conv2d_forward::<B>(skip, other, none, SAME))
        }
        None => y,
    }
}

/// The gradients that are wanted, of both inputs, weight and bias.
pub(super) fn backward<B: KernelBackend>(
    (x, skip): (FloatTensor<B>, Option<FloatTensor<B>>),
    weight: FloatTensor<B>,
    gradient: FloatTensor<B>,
    [for_x, for_skip, for_weight, for_bias]: [bool; 4],
) -> [Option<FloatTensor<B>>; 4] {
    let (shape, whole) = (x.shape(), weight.shape());
    let doubles = is_doubled(&shape, &whole);
    let [own, other] = parts::<B>(&weight, shape[1]);
    drop(weight);
    let of_bias = for_bias.then(|| conv2d_bias_gradient::<B>(gradient.clone()));
    let mut of_weight = vec![];
    let mut of_skip = None;
    if let Some(skip) = skip {
        if for_weight {
            of_weight.push(conv2d_weight_gradient::<B>(skip.clone(), gradient.clone(), other.shape(), SAME));
        }
        of_skip = for_skip.then(|| conv2d_input_gradient::<B>(other, gradient.clone(), skip.shape(), SAME));
    }
    let mut of_x = None;
    if doubles {
        if for_weight {
            of_weight.insert(0, conv2d_weight_gradient::<B>(doubled::<B>(x), gradient.clone(), own.shape(), SAME));
        }
        if for_x {
            let wide = Shape::new([shape[0], shape[1], 2 * shape[2], 2 * shape[3]]);
            of_x = Some(halved::<B>(conv2d_input_gradient::<B>(own, gradient, wide, SAME)));
        }
    } else if for_weight || for_x {
        let gradient = from_squares::<B>(gradient);
        let of_squares = phases::<B>(&own);
        if for_weight {
            let of_phases = conv2d_weight_gradient::<B>(x, gradient.clone(), of_squares.shape(), SAME);
            of_weight.insert(0, phases_backward::<B>(&of_phases));
        }
        of_x = for_x.then(|| conv2d_input_gradient::<B>(of_squares, gradient, shape, SAME));
    }
    let of_weight = for_weight.then(|| cat::<B>(of_weight, 1));
    [of_x, of_skip, of_weight, of_bias]
}

/// Doubles height and width: each pixel is repeated four times.
fn doubled<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    let shape = x.shape();
    let [images, channels, height, width] = [shape[0], shape[1], shape[2], shape[3]];
    let x = B::float_reshape(x, Shape::new([images, channels, height, 1, width, 1]));
    let x = B::float_expand(x, Shape::new([images, channels, height, 2, width, 2]));
    B::float_reshape(x, Shape::new([images, channels, 2 * height, 2 * width]))
}

/// The sum of each square of two by two pixels.
fn halved<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    let (shape, dtype): (Shape, DType) = (x.shape(), x.dtype());
    let [images, channels, height, width] = [shape[0], shape[1], shape[2] / 2, shape[3] / 2];
    let sums = Wide::<B>::of(&x).reshape([images * channels * height, 2, width, 2]).sum(&[3, 1]);
    sums.reshape([images, channels, height, width]).narrow(dtype)
}
