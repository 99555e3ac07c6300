//! The weight in blocks of classes: a copy with the classes in order, and zeros for those that fill the last block.

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::{DType, Shape};
use burn_cubecl::cubecl;
use burn_cubecl::kernel::cast;
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::{LinearView, LinearViewMut};
use cubecl::zspace::metadata::Metadata;
use kiln_operations::cube::empty;

use crate::linear_cross_entropy::settings::Blocks;

/// Values of a unit.
const VECTOR: usize = 4;

#[cube(launch, address_type = "dynamic")]
fn filled_up<X: Float, Y: Float, N: Size>(
    x: LinearView<'_, Vector<X, N>>,
    mut y: LinearViewMut<'_, Vector<Y, N>>,
    #[define(X, Y)] _dtypes: [ElemType; 2],
) {
    if y.is_in_bounds(ABSOLUTE_POS) {
        let mut value = Vector::<Y, N>::new(Y::from_int(0));
        if ABSOLUTE_POS < x.shape() {
            value = Vector::cast_from(x.read(ABSOLUTE_POS));
        }
        y.write(ABSOLUTE_POS, value);
    }
}

/// A tensor with other sizes and strides.
pub(super) fn viewed<const D: usize>(tensor: CubeTensor, shape: [usize; D], strides: [usize; D]) -> CubeTensor {
    CubeTensor { meta: Box::new(Metadata::new(Shape::from(shape), strides)), ..tensor }
}

/// Whether a matrix `[width, classes]` is the view of one whose rows are classes, such as an embedding's.
pub(super) fn is_by_class(weight: &CubeTensor) -> bool {
    weight.meta.strides()[0] < weight.meta.strides()[1]
}

/// The weight `[width, classes]` as `[blocks, length, width]` in `dtype`. It is a view if the classes are not padded and the dtype is the
/// same.
pub(super) fn of_classes(weight: CubeTensor, blocks: Blocks, dtype: DType) -> CubeTensor {
    let [width, classes]: [usize; 2] = weight.meta.shape().dims();
    let strides = [weight.meta.strides()[1], weight.meta.strides()[0]];
    if blocks.classes() == classes && blocks.count == 1 {
        let weight = cast(viewed(weight, [classes, width], strides), dtype);
        let strides = [classes * width, weight.meta.strides()[0], weight.meta.strides()[1]];
        return viewed(weight, [1, classes, width], strides);
    }
    let padded = empty(&weight, Shape::new([blocks.count, blocks.length, width]), dtype);
    let vector = if strides == [width, 1] && width.is_multiple_of(VECTOR) { VECTOR } else { 1 };
    let (client, units) = (weight.client.clone(), padded.meta.num_elements() / vector);
    let dim = CubeDim::new(&client, units);
    let dtypes = [weight.dtype, dtype].map(dtype_to_storage_type);
    filled_up::launch(
        &client,
        calculate_cube_count_elemwise(&client, units, dim),
        dim,
        padded.required_address_type().max(weight.required_address_type()),
        vector,
        viewed(weight, [classes, width], strides).into_linear_view(),
        padded.clone().into_linear_view(),
        dtypes,
    );
    padded
}
