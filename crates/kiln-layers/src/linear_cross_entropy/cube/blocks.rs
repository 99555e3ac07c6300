//! The weight in blocks of classes: views, or a copy with the classes in order, and zeros for those that fill the last block.

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

/// The weight `[width, classes]` in `dtype` as matrices `[blocks, length, width]`, which have all blocks in order: one matrix, or one for each block where
/// products would copy a view of all. They are views if the blocks [are](Blocks::are_views) and the dtype is the same.
pub(super) fn of_classes(weight: CubeTensor, blocks: Blocks, dtype: DType) -> Vec<CubeTensor> {
    let [width, classes]: [usize; 2] = weight.meta.shape().dims();
    let strides = [weight.meta.strides()[1], weight.meta.strides()[0]];
    if blocks.are_views(width, classes) {
        let weight = cast(viewed(weight, [classes, width], strides), dtype);
        let [of_class, of_value] = [weight.meta.strides()[0], weight.meta.strides()[1]];
        if blocks.count == 1 || of_value == 1 {
            let strides = [blocks.length * of_class.max(width), of_class, of_value];
            return vec![viewed(weight, [blocks.count, blocks.length, width], strides)];
        }
        let block = |index: usize| {
            let (first, after) = (index * blocks.length, classes - blocks.length);
            let bytes = |classes: usize| (classes * of_class * weight.dtype.size()) as u64;
            let handle = weight.handle.clone().offset_start(bytes(first)).offset_end(bytes(after - first));
            let weight = CubeTensor { handle, ..weight.clone() };
            viewed(weight, [1, blocks.length, width], [width * of_value, of_class, of_value])
        };
        return (0..blocks.count).map(block).collect();
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
    vec![padded]
}
