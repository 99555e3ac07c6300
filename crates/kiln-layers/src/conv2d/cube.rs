//! Convolution in CubeCL: products of matrices where a kernel is 1 x 1, and otherwise burn's kernels. Unlike burn's operations, the kernels
//! take the shape of a gradient, and no tensor of that shape.

use std::fmt::Debug;

use burn::tensor::Shape;
use burn_cubecl::kernel::conv::{ConvStrategy, conv_data_backward, conv_forward, conv_weight_backward};
use burn_cubecl::ops::permute_nchw_to_nhwc;
use burn_cubecl::tensor::CubeTensor;

use super::composed::options;
use super::product;
use super::settings::Geometry;
use crate::channels_last::{of_rows, rows};
use crate::columns::sums;

/// Height and width of a kernel.
fn sides(weight: &Shape) -> [usize; 2] {
    [weight[2], weight[3]]
}

/// burn's own operations panic here too. Both of their strategies take every convolution that burn accepts.
fn convolved<E: Debug>(result: Result<CubeTensor, E>) -> CubeTensor {
    result.unwrap_or_else(|error| panic!("burn's convolution: {error:?}"))
}

pub(super) fn forward(x: CubeTensor, weight: CubeTensor, bias: CubeTensor, geometry: Geometry) -> CubeTensor {
    let bias = (bias.meta.num_elements() > 0).then_some(bias);
    if bias.is_none() && geometry.is_product(sides(weight.meta.shape())) {
        return product::forward(x, weight);
    }
    convolved(conv_forward::<2>(x, weight, bias, options(geometry), ConvStrategy::default()))
}

/// The gradient of an input of `shape`.
pub(super) fn input_gradient(weight: CubeTensor, gradient: CubeTensor, shape: Shape, geometry: Geometry) -> CubeTensor {
    if geometry.is_product(sides(weight.meta.shape())) {
        return product::input_gradient(weight, gradient);
    }
    convolved(conv_data_backward::<2>(gradient, weight, shape, options(geometry), ConvStrategy::default()))
}

/// The gradient of a weight of `shape`.
pub(super) fn weight_gradient(x: CubeTensor, gradient: CubeTensor, shape: Shape, geometry: Geometry) -> CubeTensor {
    if geometry.is_product(sides(&shape)) {
        return product::weight_gradient(x, gradient, shape);
    }
    let weight = convolved(conv_weight_backward::<2>(x, gradient, shape, options(geometry), ConvStrategy::default()));
    // With a stride, burn may return a part of a larger tensor, which would stay as long as the gradient.
    if weight.is_contiguous_buffer() { weight } else { of_rows(rows(weight)) }
}

/// The sum over each channel.
pub(super) fn bias_gradient(gradient: CubeTensor) -> CubeTensor {
    let dtype = gradient.dtype;
    sums(permute_nchw_to_nhwc(gradient), dtype)
}
