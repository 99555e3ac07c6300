//! The product of a linear layer's inputs and gradients, which is the gradient of its weight: a small matrix with long sums.
//!
//! On a GPU one tile of the matrix is a task of one multiprocessor, and there are fewer tiles than multiprocessors. So the rows are divided
//! into parts whose products, in f32, are added in order.

use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Shape};
#[cfg(feature = "cube")]
use burn_cubecl::{CubeDevice, kernel::into_contiguous, tensor::CubeTensor};
#[cfg(feature = "cube")]
use kiln_operations::CubeKernel;
use kiln_operations::{Cost, Kernel, KernelBackend, all};

#[cfg(feature = "cube")]
use super::settings::parts;

/// `leftᵀ right`, `[inputs, outputs]`, of two matrices with the same rows and dtype.
#[derive(Clone, Copy, Debug)]
struct WeightProduct;

static COST: Cost = Cost::new("kiln::weight_product");

/// The sizes of the parts: `[parts, rows of each, inputs, outputs]`.
#[cfg(feature = "cube")]
fn sizes(left: &Shape, right: &Shape) -> [usize; 4] {
    let [rows, inputs, outputs] = [left[0], left[1], right[1]];
    let parts = parts(rows, inputs, outputs);
    [parts, rows / parts, inputs, outputs]
}

impl Kernel for WeightProduct {
    fn cost(&self) -> &'static Cost {
        &COST
    }

    fn outputs(&self, inputs: &[(Shape, DType)]) -> Vec<(Shape, DType)> {
        vec![(Shape::new([inputs[0].0[1], inputs[1].0[1]]), inputs[0].1)]
    }

    fn composed<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>) -> Vec<FloatTensor<B>> {
        let [left, right] = all(inputs);
        vec![B::float_matmul(B::float_transpose(left), right)]
    }

    #[cfg(feature = "cube")]
    fn cube(&self, _: &CubeDevice, inputs: &[(Shape, DType)]) -> Option<CubeKernel<Self>> {
        let [parts, ..] = sizes(&inputs[0].0, &inputs[1].0);
        (parts > 1).then_some(|_, inputs| vec![added(all(inputs))])
    }
}

#[cfg(feature = "cube")]
fn added([left, right]: [CubeTensor; 2]) -> CubeTensor {
    use crate::products::{product, sum_of_blocks, transposed, viewed};
    use kiln_operations::cube::empty;

    let [parts, rows, inputs, outputs] = sizes(left.meta.shape(), right.meta.shape());
    let [left, right] = [left, right].map(into_contiguous);
    let sum = empty(&left, Shape::new([inputs, outputs]), left.dtype);
    let products = empty(&left, Shape::new([parts, inputs, outputs]), DType::F32);
    let left = viewed(left, [parts, rows, inputs], [rows * inputs, inputs, 1]);
    let right = viewed(right, [parts, rows, outputs], [rows * outputs, outputs, 1]);
    sum_of_blocks(product(transposed(left), right, Some(products), DType::F32), &sum);
    sum
}

/// `leftᵀ right` of two matrices with the same rows.
pub(super) fn weight_product<B: KernelBackend>(left: FloatTensor<B>, right: FloatTensor<B>) -> FloatTensor<B> {
    let [product] = all(B::run(&WeightProduct, vec![left, right]));
    product
}
