//! Norms over the last dimension in CubeCL: a row is read once in each direction.
//!
//! A cube of units (a thread block) takes one row after the other. Sums are f32 and in a fixed order. The gradients of weight and bias are
//! summed in two stages: over the rows of a cube, and over the cubes.
//!
//! Memory in addition to inputs and outputs: 8 bytes for each place of a row and each cube of the backward pass, at most [`GROUPS_ON_GPU`].

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::{DType, Shape};
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::{LinearView, LinearViewMut};
use kiln_operations::cube::{cubes, empty, has, total};

use super::settings::{GROUPS_ON_GPU, NormSettings, WIDEST_ON_GPU};
use crate::columns::matrix;

/// Values of a row that a unit handles at most: they are counted in registers.
const COLUMNS: usize = 16;
/// The most units of a cube.
const UNITS: usize = WIDEST_ON_GPU / COLUMNS;
/// Places of a row, and units for each of them, of a cube that adds the parts of other cubes.
const PLACES: usize = 32;
const HEIGHT: usize = 8;
/// Units of a cube for rows of this width.
fn units(width: usize) -> usize {
    width.div_ceil(COLUMNS).next_power_of_two().clamp(128, UNITS)
}

/// Whether the kernels take rows of this width on a device. Those of CubeCL's CPU runtime have few units.
pub(super) fn takes(device: &burn_cubecl::CubeDevice, width: usize) -> bool {
    (1..=WIDEST_ON_GPU).contains(&width) && has(device, units(width), 6, 4 * UNITS)
}

#[cube(launch, address_type = "dynamic")]
fn forward_rows<X: Float, P: Float>(
    x: LinearView<'_, X>,
    weight: LinearView<'_, P>,
    bias: LinearView<'_, P>,
    mut y: LinearViewMut<'_, X>,
    mut statistics: LinearViewMut<'_, f32>,
    width: usize,
    share: f32,
    epsilon: f32,
    #[comptime] centred: bool,
    #[comptime] biased: bool,
    #[comptime] units: usize,
    #[define(X, P)] _dtypes: [ElemType; 2],
) {
    if !statistics.is_in_bounds(2 * CUBE_POS) {
        terminate!();
    }
    let mut sums = Shared::<[f32]>::new_slice(units);
    let (unit, first) = (UNIT_POS as usize, CUBE_POS * width);
    let mut mean = 0.0f32;
    if comptime!(centred) {
        let mut sum = 0.0f32;
        let mut place = unit;
        while place < width {
            sum += f32::cast_from(x.read(first + place));
            place += units;
        }
        mean = total(sum, &mut sums, units) * share;
    }
    let mut squares = 0.0f32;
    let mut place = unit;
    while place < width {
        let value = f32::cast_from(x.read(first + place)) - mean;
        squares += value * value;
        place += units;
    }
    let deviation = 1.0f32 / (total(squares, &mut sums, units) * share + epsilon).sqrt();
    let mut place = unit;
    while place < width {
        let normal = (f32::cast_from(x.read(first + place)) - mean) * deviation;
        let mut value = normal * f32::cast_from(weight.read(place));
        if comptime!(biased) {
            value += f32::cast_from(bias.read(place));
        }
        y.write(first + place, X::cast_from(value));
        place += units;
    }
    if unit == 0 {
        statistics.write(2 * CUBE_POS, mean);
        statistics.write(2 * CUBE_POS + 1, deviation);
    }
}

#[cube(launch, address_type = "dynamic")]
fn backward_rows<X: Float, P: Float, G: Float>(
    x: LinearView<'_, X>,
    statistics: LinearView<'_, f32>,
    weight: LinearView<'_, P>,
    gradient: LinearView<'_, G>,
    mut dx: LinearViewMut<'_, X>,
    mut parts: LinearViewMut<'_, f32>,
    rows: usize,
    width: usize,
    share: f32,
    #[comptime] centred: bool,
    #[comptime] units: usize,
    #[comptime] columns: usize,
    #[define(X, P, G)] _dtypes: [ElemType; 3],
) {
    let mut sums = Shared::<[f32]>::new_slice(units);
    let unit = UNIT_POS as usize;
    let mut of_weight = Array::<f32>::new(columns);
    let mut of_bias = Array::<f32>::new(columns);
    #[unroll]
    for column in 0..columns {
        of_weight[column] = 0.0f32;
        of_bias[column] = 0.0f32;
    }
    let mut row = CUBE_POS;
    while row < rows {
        let first = row * width;
        let mean = statistics.read(2 * row);
        let deviation = statistics.read(2 * row + 1);
        let mut sum = 0.0f32;
        let mut product = 0.0f32;
        #[unroll]
        for column in 0..columns {
            let place = column * units + unit;
            if place < width {
                let normal = (f32::cast_from(x.read(first + place)) - mean) * deviation;
                let g = f32::cast_from(gradient.read(first + place));
                let scaled = g * f32::cast_from(weight.read(place));
                sum += scaled;
                product += scaled * normal;
                of_weight[column] += g * normal;
                of_bias[column] += g;
            }
        }
        let product = total(product, &mut sums, units) * share;
        let mut mean_gradient = 0.0f32;
        if comptime!(centred) {
            mean_gradient = total(sum, &mut sums, units) * share;
        }
        #[unroll]
        for column in 0..columns {
            let place = column * units + unit;
            if place < width {
                let normal = (f32::cast_from(x.read(first + place)) - mean) * deviation;
                let scaled = f32::cast_from(gradient.read(first + place)) * f32::cast_from(weight.read(place));
                dx.write(first + place, X::cast_from((scaled - normal * product - mean_gradient) * deviation));
            }
        }
        row += CUBE_COUNT;
    }
    #[unroll]
    for column in 0..columns {
        let place = column * units + unit;
        if place < width {
            parts.write(2 * CUBE_POS * width + place, of_weight[column]);
            parts.write((2 * CUBE_POS + 1) * width + place, of_bias[column]);
        }
    }
}

/// Adds the parts of all cubes. The units above each other take one place of a row.
#[cube(launch, address_type = "dynamic")]
fn add_parts<P: Float>(
    parts: LinearView<'_, f32>,
    mut of_weight: LinearViewMut<'_, P>,
    mut of_bias: LinearViewMut<'_, P>,
    groups: usize,
    width: usize,
    #[define(P)] _dtype: ElemType,
) {
    let mut weights = Shared::<[f32]>::new_slice(PLACES * HEIGHT);
    let mut biases = Shared::<[f32]>::new_slice(PLACES * HEIGHT);
    let unit = UNIT_POS as usize;
    let place = CUBE_POS_X as usize * PLACES + UNIT_POS_X as usize;
    let mut weight = 0.0f32;
    let mut bias = 0.0f32;
    if place < width {
        let mut group = UNIT_POS_Y as usize;
        while group < groups {
            weight += parts.read(2 * group * width + place);
            bias += parts.read((2 * group + 1) * width + place);
            group += HEIGHT;
        }
    }
    weights[unit] = weight;
    biases[unit] = bias;
    sync_cube();
    if place < width && UNIT_POS_Y == 0 {
        #[unroll]
        for above in 1..HEIGHT {
            weight += weights[above * PLACES + unit];
            bias += biases[above * PLACES + unit];
        }
        of_weight.write(place, P::cast_from(weight));
        of_bias.write(place, P::cast_from(bias));
    }
}

/// The output, and mean and reciprocal deviation of each row in f32, `[rows, 2]`.
pub(super) fn forward(x: CubeTensor, weight: CubeTensor, bias: CubeTensor, settings: NormSettings) -> [CubeTensor; 2] {
    let [rows, width] = matrix(&x);
    let (y, statistics) = (empty(&x, x.meta.shape().clone(), x.dtype), empty(&x, Shape::new([rows, 2]), DType::F32));
    let biased = bias.meta.shape().num_elements() > 0;
    let [x, weight] = [x, weight].map(into_contiguous);
    // A missing bias is not read.
    let bias = if biased { into_contiguous(bias) } else { weight.clone() };
    let units = units(width);
    forward_rows::launch(
        &x.client.clone(),
        cubes(&x.client, rows),
        CubeDim::new_1d(units as u32),
        x.required_address_type().max(statistics.required_address_type()),
        x.clone().into_linear_view(),
        weight.clone().into_linear_view(),
        bias.into_linear_view(),
        y.clone().into_linear_view(),
        statistics.clone().into_linear_view(),
        width,
        1.0 / width as f32,
        settings.epsilon,
        settings.centred,
        biased,
        units,
        [x.dtype, weight.dtype].map(dtype_to_storage_type),
    );
    [y, statistics]
}

/// The gradients of input, weight and bias.
pub(super) fn backward(
    x: CubeTensor,
    statistics: CubeTensor,
    weight: CubeTensor,
    gradient: CubeTensor,
    settings: NormSettings,
) -> [CubeTensor; 3] {
    let [rows, width] = matrix(&x);
    let groups = rows.min(GROUPS_ON_GPU);
    let [x, statistics, weight, gradient] = [x, statistics, weight, gradient].map(into_contiguous);
    let dx = empty(&x, x.meta.shape().clone(), x.dtype);
    let parts = empty(&x, Shape::new([groups, 2, width]), DType::F32);
    let [of_weight, of_bias] = [(); 2].map(|()| empty(&x, Shape::new([width]), weight.dtype));
    let (units, address) = (units(width), x.required_address_type().max(parts.required_address_type()));
    backward_rows::launch(
        &x.client.clone(),
        CubeCount::Static(groups as u32, 1, 1),
        CubeDim::new_1d(units as u32),
        address,
        x.clone().into_linear_view(),
        statistics.into_linear_view(),
        weight.clone().into_linear_view(),
        gradient.clone().into_linear_view(),
        dx.clone().into_linear_view(),
        parts.clone().into_linear_view(),
        rows,
        width,
        1.0 / width as f32,
        settings.centred,
        units,
        width.div_ceil(units),
        [x.dtype, weight.dtype, gradient.dtype].map(dtype_to_storage_type),
    );
    add_parts::launch(
        &x.client.clone(),
        CubeCount::Static(width.div_ceil(PLACES) as u32, 1, 1),
        CubeDim::new_2d(PLACES as u32, HEIGHT as u32),
        address,
        parts.into_linear_view(),
        of_weight.clone().into_linear_view(),
        of_bias.clone().into_linear_view(),
        groups,
        width,
        dtype_to_storage_type(weight.dtype),
    );
    [dx, of_weight, of_bias]
}
