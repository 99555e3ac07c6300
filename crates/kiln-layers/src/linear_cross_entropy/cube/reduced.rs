//! The sums of all rows, each in one cube of units, and gradients times a factor.

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::{DType, Shape};
use burn_cubecl::cubecl;
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::{LinearView, LinearViewMut};
use kiln_operations::cube::{empty, flat, over, total as total_of};

use super::rows::{Given, Rows, UNITS, counted};

/// The sum of the weights of the rows that count, each times the weight of its class.
#[cube(launch)]
fn sum_weights<T: Int>(
    class_weights: LinearView<'_, f32>,
    targets: LinearView<'_, T>,
    row_weights: LinearView<'_, f32>,
    mut sum: LinearViewMut<'_, f32>,
    rows: usize,
    classes: usize,
    ignored: i32,
    #[comptime] given: Given,
    #[define(T)] _dtype: ElemType,
) {
    let mut places = Shared::<[f32]>::new_slice(UNITS);
    let mut value = 0.0f32;
    let mut row = UNIT_POS as usize;
    while row < rows {
        let (_, weight, of_class) = counted::<T>(row, &class_weights, &targets, &row_weights, classes, ignored, given);
        value += weight * of_class;
        row += UNITS;
    }
    let value = total_of(value, &mut places, UNITS);
    if UNIT_POS == 0 {
        sum.write(0, value);
    }
}

/// The sum of values, divided by a number if `divides`.
#[cube(launch)]
fn sum_values(
    values: LinearView<'_, f32>,
    divisor: LinearView<'_, f32>,
    mut sum: LinearViewMut<'_, f32>,
    count: usize,
    #[comptime] divides: bool,
) {
    let mut places = Shared::<[f32]>::new_slice(UNITS);
    let mut value = 0.0f32;
    let mut place = UNIT_POS as usize;
    while place < count {
        value += values.read(place);
        place += UNITS;
    }
    let mut value = total_of(value, &mut places, UNITS);
    if UNIT_POS == 0 {
        if comptime!(divides) {
            value /= divisor.read(0);
        }
        sum.write(0, value);
    }
}

#[cube(launch, address_type = "dynamic")]
fn scale<X: Float, Y: Float, N: Size>(
    x: LinearView<'_, Vector<X, N>>,
    factor: LinearView<'_, f32>,
    mut y: LinearViewMut<'_, Vector<Y, N>>,
    #[define(X, Y)] _dtypes: [ElemType; 2],
) {
    if y.is_in_bounds(ABSOLUTE_POS) {
        let value = Vector::<f32, N>::cast_from(x.read(ABSOLUTE_POS)) * Vector::new(factor.read(0));
        y.write(ABSOLUTE_POS, Vector::cast_from(value));
    }
}

/// The divisor of the sum of the losses for their mean, `[1]`.
pub(super) fn total(rows: &Rows, count: usize) -> CubeTensor {
    let sum = empty(&rows.targets, Shape::new([1]), DType::F32);
    sum_weights::launch(
        &sum.client,
        CubeCount::Static(1, 1, 1),
        CubeDim::new_1d(UNITS as u32),
        rows.class_weights.clone().into_linear_view(),
        rows.targets.clone().into_linear_view(),
        rows.row_weights.clone().into_linear_view(),
        sum.clone().into_linear_view(),
        count,
        rows.classes,
        rows.ignored,
        rows.given,
        dtype_to_storage_type(rows.targets.dtype),
    );
    sum
}

/// The sum of the losses, `[1]`, divided by a total if there is one.
pub(super) fn sum(losses: CubeTensor, total: Option<CubeTensor>) -> CubeTensor {
    let sum = empty(&losses, Shape::new([1]), DType::F32);
    let (count, divides) = (losses.meta.num_elements(), total.is_some());
    let divisor = total.unwrap_or_else(|| losses.clone());
    sum_values::launch(
        &sum.client,
        CubeCount::Static(1, 1, 1),
        CubeDim::new_1d(UNITS as u32),
        losses.into_linear_view(),
        divisor.into_linear_view(),
        sum.clone().into_linear_view(),
        count,
        divides,
    );
    sum
}

/// `gradient * factor` in `dtype`, with a `factor` of one element. It takes the memory of the gradient if the dtype is the same and no
/// other handle to it exists. There are values.
pub(crate) fn scaled(gradient: CubeTensor, factor: CubeTensor, dtype: DType) -> CubeTensor {
    let (shaped, [gradient]) = flat([gradient]);
    let count = gradient.meta.num_elements();
    let vector = [4, 2].into_iter().find(|size| count.is_multiple_of(*size)).unwrap_or(1);
    let (y, view) = match gradient.dtype == dtype {
        true => over(&gradient, 0),
        false => {
            let y = empty(&gradient, Shape::new([count]), dtype);
            (y.clone(), y.into_linear_view())
        }
    };
    let client = gradient.client.clone();
    let dim = CubeDim::new(&client, count / vector);
    scale::launch(
        &client,
        calculate_cube_count_elemwise(&client, count / vector, dim),
        dim,
        gradient.required_address_type(),
        vector,
        gradient.clone().into_linear_view(),
        factor.into_linear_view(),
        view,
        [gradient.dtype, dtype].map(dtype_to_storage_type),
    );
    shaped(y)
}
