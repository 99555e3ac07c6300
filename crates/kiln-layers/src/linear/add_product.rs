//! The product of rows with a matrix, added to other rows in their memory.

use burn::backend::TensorMetadata;
#[cfg(feature = "flex")]
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use kiln_operations::{Cost, Kernel, KernelBackend, all};

use super::settings::ADD_PRODUCT;
use crate::composed::cast;

/// The side of a matrix that rows are multiplied with.
#[derive(Clone, Copy, Debug)]
pub(super) enum Side {
    /// Its rows: the product is with the matrix.
    Rows,
    /// Its columns: the product is with the transposed matrix.
    Columns,
}

/// Rows, to which the product of other rows with a matrix is added. Inputs are the first rows, the others, and the matrix.
#[derive(Clone, Copy, Debug)]
struct AddProduct(Side);

pub(super) fn add_product<B: KernelBackend>(
    y: FloatTensor<B>,
    x: FloatTensor<B>,
    matrix: FloatTensor<B>,
    side: Side,
) -> FloatTensor<B> {
    let [y] = all(B::run(&AddProduct(side), vec![y, x, matrix]));
    y
}

impl Kernel for AddProduct {
    fn cost(&self) -> &'static Cost {
        &ADD_PRODUCT
    }

    /// The side.
    fn scalars(&self) -> Vec<i64> {
        vec![self.0 as i64]
    }

    fn composed<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>) -> Vec<FloatTensor<B>> {
        let [y, x, matrix] = all(inputs);
        let (shape, dtype) = (y.shape(), y.dtype());
        let matrix = cast::<B>(matrix, dtype);
        let matrix = match self.0 {
            Side::Rows => matrix,
            Side::Columns => B::float_transpose(matrix),
        };
        let product = B::float_matmul(super::composed::matrix::<B>(x), matrix);
        vec![B::float_add(y, B::float_reshape(product, shape))]
    }

    #[cfg(feature = "flex")]
    fn flex(&self, inputs: Vec<FlexTensor>) -> Vec<FlexTensor> {
        let [y, x, matrix] = all(inputs);
        vec![super::flex::add_product(y, &x, &matrix, matches!(self.0, Side::Columns))]
    }
}
