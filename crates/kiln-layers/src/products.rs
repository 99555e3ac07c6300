//! Stacks of matrices in CubeCL: views, products with sums in f32, and their sum.

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::{DType, Shape};
use burn_cubecl::cubecl;
use burn_cubecl::kernel::matmul::{MatmulStrategy, matmul};
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::{LinearView, LinearViewMut};
use cubecl::zspace::metadata::Metadata;

/// A tensor with other sizes and strides.
pub(crate) fn viewed<const D: usize>(tensor: CubeTensor, shape: [usize; D], strides: [usize; D]) -> CubeTensor {
    CubeTensor { meta: Box::new(Metadata::new(Shape::from(shape), strides)), ..tensor }
}

/// A product with sums in f32, in `dtype`, in the memory of `out` if it is given.
pub(crate) fn product(left: CubeTensor, right: CubeTensor, out: Option<CubeTensor>, dtype: DType) -> CubeTensor {
    let product = matmul(left, right, out, MatmulStrategy::default(), dtype);
    product.unwrap_or_else(|error| unreachable!("burn has a kernel for each product: {error:?}"))
}

/// The transposed matrices of a stack.
pub(crate) fn transposed(mut matrices: CubeTensor) -> CubeTensor {
    matrices.meta.swap(1, 2);
    matrices
}

/// The sums of values in the same place of each block.
#[cube(launch, address_type = "dynamic")]
fn add_blocks<Y: Float, N: Size>(
    blocks: LinearView<'_, Vector<f32, N>>,
    mut sums: LinearViewMut<'_, Vector<Y, N>>,
    count: usize,
    length: usize,
    #[define(Y)] _dtype: ElemType,
) {
    if sums.is_in_bounds(ABSOLUTE_POS) {
        let mut sum = blocks.read(ABSOLUTE_POS);
        let mut block = 1;
        while block < count {
            sum += blocks.read(block * length + ABSOLUTE_POS);
            block += 1;
        }
        sums.write(ABSOLUTE_POS, Vector::cast_from(sum));
    }
}

/// Writes the sum of blocks `[count, ..]` in f32 to `out`.
pub(crate) fn sum_of_blocks(blocks: CubeTensor, out: &CubeTensor) {
    let (count, values) = (blocks.meta.shape()[0], out.meta.num_elements());
    let vector = [4, 2].into_iter().find(|size| values.is_multiple_of(*size)).unwrap_or(1);
    let (client, length) = (blocks.client.clone(), values / vector);
    let dim = CubeDim::new(&client, length);
    add_blocks::launch(
        &client,
        calculate_cube_count_elemwise(&client, length, dim),
        dim,
        blocks.required_address_type(),
        vector,
        blocks.into_linear_view(),
        out.clone().into_linear_view(),
        count,
        length,
        dtype_to_storage_type(out.dtype),
    );
}
