//! Dropout in CubeCL, in one launch, with the random numbers of the composition.

use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::{LinearView, LinearViewMut};
use kiln_operations::cube::over;

use super::settings::Dropout;
use crate::mixed::mixed;

#[cube(launch, address_type = "dynamic")]
fn drop_values<X: Float, N: Size>(
    x: LinearView<'_, Vector<X, N>>,
    mut y: LinearViewMut<'_, Vector<X, N>>,
    length: usize,
    low: u32,
    high: u32,
    threshold: u32,
    factor: f32,
    #[define(X)] _dtype: ElemType,
) {
    let vector = N::value();
    if y.is_in_bounds(ABSOLUTE_POS) {
        let x = Vector::<f32, N>::cast_from(x.read(ABSOLUTE_POS));
        let first = ABSOLUTE_POS * vector;
        let of_row = mixed(mixed((first / length) as u32 + 1 + low) ^ high);
        let mut values = Vector::<f32, N>::new(0.0f32);
        #[unroll]
        for lane in 0..vector {
            let word = mixed(of_row ^ mixed((first % length + lane) as u32 + 1));
            values.insert(lane, select(word < threshold, 0.0f32, x.extract(lane) * factor));
        }
        y.write(ABSOLUTE_POS, Vector::cast_from(values));
    }
}

pub(super) fn dropped(x: CubeTensor, settings: Dropout) -> CubeTensor {
    let x = into_contiguous(x);
    let (shape, client) = (x.meta.shape().clone(), x.client.clone());
    let length = shape.last().copied().unwrap_or(1);
    // A vector is of one row.
    let vector = if length.is_multiple_of(4) { 4 } else { 1 };
    let units = shape.num_elements() / vector;
    let dim = CubeDim::new(&client, units);
    let (address, dtype) = (x.required_address_type(), dtype_to_storage_type(x.dtype));
    let ([low, high], (y, of_y)) = (settings.words(), over(&x, 0));
    drop_values::launch(
        &client,
        calculate_cube_count_elemwise(&client, units, dim),
        dim,
        address,
        vector,
        x.into_linear_view(),
        of_y,
        length,
        low,
        high,
        u32::try_from(settings.rate.threshold()).unwrap_or(u32::MAX),
        settings.rate.factor(),
        dtype,
    );
    y
}
