//! Values of codes in CubeCL: a unit (a thread) writes one value, so that neighbours write beside each other.

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::{DType, Shape};
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::{LinearView, LinearViewMut};

use super::layout::{BLOCK, GROUP, LEVELS, OF_WORD, OFFSET};
use crate::cube::empty;

/// A product that is rounded by itself. Compilers do not fuse it with a sum, as they may do with `a * b`.
#[cube]
fn product(a: f32, b: f32) -> f32 {
    fma(a, b, -0.0f32)
}

#[cube(launch, address_type = "dynamic")]
fn widen<E: Float>(
    levels: LinearView<'_, f32>,
    codes: LinearView<'_, i32>,
    scales: LinearView<'_, i32>,
    mut values: LinearViewMut<'_, E>,
    #[define(E)] _dtype: ElemType,
) {
    let place = ABSOLUTE_POS;
    if values.is_in_bounds(place) {
        let block = place / BLOCK;
        let scale_code = u32::cast_from(scales.read(block / 4)) >> u32::cast_from(8 * (block % 4)) & 255u32;
        let group = levels.read(OFFSET + 1 + block / GROUP);
        let scale = product(levels.read(LEVELS + scale_code as usize), group) + levels.read(OFFSET);
        // The first of two codes is in the high bits of its byte.
        let at = place % OF_WORD;
        let shift = 8 * (at / 2) + 4 - 4 * (at % 2);
        let code = u32::cast_from(codes.read(place / OF_WORD)) >> u32::cast_from(shift) & 15u32;
        values.write(place, E::cast_from(product(levels.read(code as usize), scale)));
    }
}

pub(super) fn widened(tensors: [CubeTensor; 3], shape: [usize; 2], dtype: DType) -> CubeTensor {
    let [levels, codes, scales] = tensors.map(into_contiguous);
    let values = empty(&levels, Shape::new(shape), dtype);
    let count = shape[0] * shape[1];
    let cube = CubeDim::new(&values.client, count);
    widen::launch(
        &values.client,
        calculate_cube_count_elemwise(&values.client, count, cube),
        cube,
        values.required_address_type().max(codes.required_address_type()),
        levels.into_linear_view(),
        codes.into_linear_view(),
        scales.into_linear_view(),
        values.clone().into_linear_view(),
        dtype_to_storage_type(dtype),
    );
    values
}
