//! The convolution whose kernel is 1 x 1 and moves by 1, without padding: products of matrices whose rows are the channels of a pixel.
//!
//! burn's own kernels copy tensors for it, or move windows over them.

use burn::tensor::{DType, Shape};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::kernel::matmul::{MatmulStrategy, matmul};
use burn_cubecl::ops::permute;
use burn_cubecl::tensor::CubeTensor;
use kiln_operations::cube::empty;

use super::cost::product_parts;
use crate::channels_last::{of_rows, rows};
use crate::columns::write_sum_of_parts;

/// The tensor's values, row after row, with another shape.
fn shaped<const D: usize>(tensor: CubeTensor, shape: [usize; D]) -> CubeTensor {
    CubeTensor::new_contiguous(tensor.client, tensor.device, Shape::new(shape), tensor.handle, tensor.dtype)
}

/// A weight as a matrix `[out, in]`.
fn matrix(weight: CubeTensor) -> CubeTensor {
    let [outs, ins, ..] = weight.meta.shape().dims::<4>();
    shaped(into_contiguous(weight), [outs, ins])
}

/// Writes the product of two matrices, or of pairs of them, to `out`. burn's own operations panic here too.
fn write_product(left: CubeTensor, right: CubeTensor, out: CubeTensor) {
    let dtype = out.dtype;
    matmul(left, right, Some(out), MatmulStrategy::default(), dtype)
        .unwrap_or_else(|error| panic!("burn's matrix product: {error:?}"));
}

/// The products of each pixel of `x`, `[samples, channels, height, width]`, with `right`, `[channels, others]`.
fn of_pixels(x: CubeTensor, right: CubeTensor) -> CubeTensor {
    let x = rows(x);
    let ([samples, height, width, channels], others) = (x.meta.shape().dims(), right.meta.shape()[1]);
    let y = empty(&x, Shape::new([samples, height, width, others]), x.dtype);
    let pixels = samples * height * width;
    write_product(shaped(x, [pixels, channels]), right, shaped(y.clone(), [pixels, others]));
    of_rows(y)
}

pub(super) fn forward(x: CubeTensor, weight: CubeTensor) -> CubeTensor {
    of_pixels(x, permute(matrix(weight), &[1, 0]))
}

pub(super) fn input_gradient(weight: CubeTensor, gradient: CubeTensor) -> CubeTensor {
    of_pixels(gradient, matrix(weight))
}

/// The gradient of a weight of `shape`, as a sum of products over parts of the pixels: one product of small matrices over many pixels has
/// fewer tiles than a GPU has multiprocessors.
pub(super) fn weight_gradient(x: CubeTensor, gradient: CubeTensor, shape: Shape) -> CubeTensor {
    let [x, gradient] = [x, gradient].map(rows);
    let pixels = x.meta.num_elements() / shape[1];
    let parts = product_parts(pixels, shape[0], shape[1]);
    let of_parts = |tensor: CubeTensor, channels| shaped(tensor, [parts, pixels / parts, channels]);
    let result = empty(&x, shape.clone(), gradient.dtype);
    let left = permute(of_parts(gradient, shape[0]), &[0, 2, 1]);
    let right = of_parts(x, shape[1]);
    if parts == 1 {
        write_product(left, right, shaped(result.clone(), [1, shape[0], shape[1]]));
        return result;
    }
    let sums = empty(&right, Shape::new([parts, shape[0], shape[1]]), DType::F32);
    write_product(left, right, sums.clone());
    let vector = if shape.num_elements().is_multiple_of(4) { 4 } else { 1 };
    write_sum_of_parts(sums, &result, vector);
    result
}
