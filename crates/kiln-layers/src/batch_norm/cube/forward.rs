//! The forward pass of batch norm in CubeCL.
//!
//! The variance is that of Chan, Golub and LeVeque 1983: of each group of rows around its first row, then of all groups.

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::{DType, Shape};
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::{LinearView, LinearViewMut};
use kiln_operations::cube::{empty, over};

use super::activation::{Kind, activated};
use crate::batch_norm::settings::{BatchNormOutput, NormActivation, NormSettings};
use crate::channels_last::{of_rows, rows};
use crate::columns::{above, matrix};
use crate::grid::Grid;

/// For each group of rows its first row, and the sums of the differences to it and of their squares: `[groups, 3, channels]`.
#[cube(launch, address_type = "dynamic")]
fn sum_rows<X: Float, N: Size>(
    x: LinearView<'_, Vector<X, N>>,
    mut parts: LinearViewMut<'_, Vector<f32, N>>,
    rows: usize,
    width: usize,
    share: usize,
    #[comptime] lanes: usize,
    #[comptime] height: usize,
    #[define(X)] _dtype: ElemType,
) {
    let mut sums = Shared::<[Vector<f32, N>]>::new_slice(lanes * height);
    let column = CUBE_POS_X as usize * lanes + UNIT_POS_X as usize;
    let group = CUBE_POS_Y as usize;
    let first = group * share;
    let end = min(first + share, rows);
    let mut around = Vector::<f32, N>::new(0.0f32);
    let mut sum = Vector::<f32, N>::new(0.0f32);
    let mut squares = Vector::<f32, N>::new(0.0f32);
    if column < width {
        around = Vector::cast_from(x.read(first * width + column));
        let mut row = first + UNIT_POS_Y as usize;
        while row < end {
            let difference = Vector::<f32, N>::cast_from(x.read(row * width + column)) - around;
            sum += difference;
            squares += difference * difference;
            row += height;
        }
    }
    let sum = above::<N>(sum, &mut sums, lanes, height);
    let squares = above::<N>(squares, &mut sums, lanes, height);
    if UNIT_POS_Y == 0 && column < width {
        parts.write(3 * group * width + column, around);
        parts.write((3 * group + 1) * width + column, sum);
        parts.write((3 * group + 2) * width + column, squares);
    }
}

/// Writes a column of a group of rows. The output that is computed again has the bits of the forward pass.
#[cube]
fn write_rows<X: Float, N: Size>(
    x: &LinearView<'_, Vector<X, N>>,
    residual: &LinearView<'_, Vector<X, N>>,
    y: &mut LinearViewMut<'_, Vector<X, N>>,
    mean: Vector<f32, N>,
    factor: Vector<f32, N>,
    offset: Vector<f32, N>,
    column: usize,
    rows: usize,
    width: usize,
    share: usize,
    slope: f32,
    #[comptime] added: bool,
    #[comptime] activation: Kind,
    #[comptime] height: usize,
) {
    let group = CUBE_POS_Y as usize;
    let end = min((group + 1) * share, rows);
    let mut row = group * share + UNIT_POS_Y as usize;
    while row < end {
        let at = row * width + column;
        let mut value = (Vector::<f32, N>::cast_from(x.read(at)) - mean) * factor + offset;
        if comptime!(added) {
            value += Vector::cast_from(residual.read(at));
        }
        y.write(at, Vector::cast_from(activated::<N>(value, slope, activation)));
        row += height;
    }
}

/// Normalises with the statistics of all rows, of the parts of [`sum_rows`]. Every cube adds the parts of its channels.
#[cube(launch, address_type = "dynamic")]
fn normalise<X: Float, P: Float, R: Float, N: Size>(
    x: LinearView<'_, Vector<X, N>>,
    residual: LinearView<'_, Vector<X, N>>,
    parts: LinearView<'_, Vector<f32, N>>,
    weight: LinearView<'_, Vector<P, N>>,
    bias: LinearView<'_, Vector<P, N>>,
    running_mean: LinearView<'_, Vector<R, N>>,
    running_variance: LinearView<'_, Vector<R, N>>,
    mut y: LinearViewMut<'_, Vector<X, N>>,
    mut statistics: LinearViewMut<'_, Vector<f32, N>>,
    mut new_mean: LinearViewMut<'_, Vector<R, N>>,
    mut new_variance: LinearViewMut<'_, Vector<R, N>>,
    rows: usize,
    width: usize,
    share: usize,
    groups: usize,
    epsilon: f32,
    kept: f32,
    momentum: f32,
    slope: f32,
    #[comptime] added: bool,
    #[comptime] activation: Kind,
    #[comptime] lanes: usize,
    #[comptime] height: usize,
    #[define(X, P, R)] _dtypes: [ElemType; 3],
) {
    let mut sums = Shared::<[Vector<f32, N>]>::new_slice(lanes * height);
    let column = CUBE_POS_X as usize * lanes + UNIT_POS_X as usize;
    let place = min(column, width - 1);
    let around = parts.read(place);
    let count = Vector::<f32, N>::new(f32::cast_from(rows));
    let mut sum = Vector::<f32, N>::new(0.0f32);
    let mut group = UNIT_POS_Y as usize;
    while group < groups {
        let in_group = Vector::<f32, N>::new(f32::cast_from(min(share, rows - group * share)));
        sum +=
            (parts.read(3 * group * width + place) - around) * in_group + parts.read((3 * group + 1) * width + place);
        group += height;
    }
    let distance = above::<N>(sum, &mut sums, lanes, height) / count;
    let mut squares = Vector::<f32, N>::new(0.0f32);
    let mut group = UNIT_POS_Y as usize;
    while group < groups {
        let in_group = Vector::<f32, N>::new(f32::cast_from(min(share, rows - group * share)));
        let shift = parts.read((3 * group + 1) * width + place) / in_group;
        let off = (parts.read(3 * group * width + place) - around) + shift - distance;
        squares += parts.read((3 * group + 2) * width + place) + (off * off - shift * shift) * in_group;
        group += height;
    }
    let variance = above::<N>(squares, &mut sums, lanes, height) / count;
    let mean = around + distance;
    let one = Vector::<f32, N>::new(1.0f32);
    let deviation = one / (variance + Vector::new(epsilon)).sqrt();
    if CUBE_POS_Y == 0 && UNIT_POS_Y == 0 && column < width {
        statistics.write(column, mean);
        statistics.write(width + column, Vector::new(0.0f32));
        statistics.write(2 * width + column, deviation);
        let (old, new) = (Vector::<f32, N>::new(kept), Vector::<f32, N>::new(momentum));
        let of_mean = Vector::<f32, N>::cast_from(running_mean.read(column)) * old + mean * new;
        let of_variance = Vector::<f32, N>::cast_from(running_variance.read(column)) * old + variance * new;
        new_mean.write(column, Vector::cast_from(of_mean));
        new_variance.write(column, Vector::cast_from(of_variance));
    }
    if column < width {
        let factor = deviation * Vector::cast_from(weight.read(column));
        let offset = Vector::<f32, N>::cast_from(bias.read(column));
        write_rows::<X, N>(
            &x, &residual, &mut y, mean, factor, offset, column, rows, width, share, slope, added, activation, height,
        );
    }
}

/// Mean and reciprocal deviation of running statistics.
#[cube(launch, address_type = "dynamic")]
fn fixed_statistics<R: Float, N: Size>(
    running_mean: LinearView<'_, Vector<R, N>>,
    running_variance: LinearView<'_, Vector<R, N>>,
    mut statistics: LinearViewMut<'_, Vector<f32, N>>,
    width: usize,
    epsilon: f32,
    #[define(R)] _dtype: ElemType,
) {
    let column = ABSOLUTE_POS;
    if column < width {
        let variance = Vector::<f32, N>::cast_from(running_variance.read(column)) + Vector::new(epsilon);
        statistics.write(column, Vector::cast_from(running_mean.read(column)));
        statistics.write(width + column, Vector::new(0.0f32));
        statistics.write(2 * width + column, Vector::<f32, N>::new(1.0f32) / variance.sqrt());
    }
}

/// Normalises with known statistics.
#[cube(launch, address_type = "dynamic")]
fn normalise_by<X: Float, P: Float, N: Size>(
    x: LinearView<'_, Vector<X, N>>,
    residual: LinearView<'_, Vector<X, N>>,
    statistics: LinearView<'_, Vector<f32, N>>,
    weight: LinearView<'_, Vector<P, N>>,
    bias: LinearView<'_, Vector<P, N>>,
    mut y: LinearViewMut<'_, Vector<X, N>>,
    rows: usize,
    width: usize,
    share: usize,
    slope: f32,
    #[comptime] added: bool,
    #[comptime] activation: Kind,
    #[comptime] lanes: usize,
    #[comptime] height: usize,
    #[define(X, P)] _dtypes: [ElemType; 2],
) {
    let column = CUBE_POS_X as usize * lanes + UNIT_POS_X as usize;
    if column < width {
        let mean = statistics.read(column) + statistics.read(width + column);
        let factor = statistics.read(2 * width + column) * Vector::cast_from(weight.read(column));
        let offset = Vector::<f32, N>::cast_from(bias.read(column));
        write_rows::<X, N>(
            &x, &residual, &mut y, mean, factor, offset, column, rows, width, share, slope, added, activation, height,
        );
    }
}

/// Launches [`normalise_by`] on rows.
fn by(
    x: CubeTensor,
    residual: Option<CubeTensor>,
    [statistics, weight, bias]: [CubeTensor; 3],
    activation: NormActivation,
) -> CubeTensor {
    let (grid, (kind, slope), added) = (Grid::of(matrix(&x)), activation.kind(), residual.is_some());
    let (y, view) = over(&x, 0);
    normalise_by::launch(
        &x.client.clone(),
        grid.cubes(),
        grid.units(),
        x.required_address_type(),
        grid.vector,
        x.clone().into_linear_view(),
        // A missing residual is not read.
        residual.unwrap_or_else(|| statistics.clone()).into_linear_view(),
        statistics.into_linear_view(),
        weight.clone().into_linear_view(),
        bias.into_linear_view(),
        view,
        grid.rows,
        grid.width,
        grid.share,
        slope,
        added,
        kind,
        grid.lanes,
        grid.height,
        [x.dtype, weight.dtype].map(dtype_to_storage_type),
    );
    y
}

/// Computes the output again from the statistics of the pass. `parameters` are weight and bias.
pub(crate) fn again(
    x: CubeTensor,
    statistics: CubeTensor,
    parameters: [CubeTensor; 2],
    activation: NormActivation,
) -> CubeTensor {
    let [weight, bias] = parameters.map(into_contiguous);
    of_rows(by(rows(x), None, [into_contiguous(statistics), weight, bias], activation))
}

/// The output with the running statistics, and these as the statistics of the pass.
fn fixed(
    x: CubeTensor,
    residual: Option<CubeTensor>,
    [weight, bias, mean, variance]: [CubeTensor; 4],
    settings: NormSettings,
) -> BatchNormOutput<CubeTensor> {
    let grid = Grid::of(matrix(&x));
    let statistics = empty(&x, Shape::new([3, grid.columns()]), DType::F32);
    const UNITS: usize = 64;
    fixed_statistics::launch(
        &x.client.clone(),
        CubeCount::Static(grid.width.div_ceil(UNITS) as u32, 1, 1),
        CubeDim::new_1d(UNITS as u32),
        statistics.required_address_type(),
        grid.vector,
        mean.clone().into_linear_view(),
        variance.clone().into_linear_view(),
        statistics.clone().into_linear_view(),
        grid.width,
        settings.epsilon,
        dtype_to_storage_type(mean.dtype),
    );
    let y = by(x, residual, [statistics.clone(), weight, bias], settings.activation);
    BatchNormOutput { y: of_rows(y), running: [mean, variance], statistics }
}

/// The output, the new running statistics, and the statistics of the pass. `of_channels` are weight, bias, running mean and running
/// variance.
pub(crate) fn forward(
    x: CubeTensor,
    residual: Option<CubeTensor>,
    of_channels: [CubeTensor; 4],
    settings: NormSettings,
) -> BatchNormOutput<CubeTensor> {
    let (x, residual, of_channels) = (rows(x), residual.map(rows), of_channels.map(into_contiguous));
    let Some(momentum) = settings.momentum else { return fixed(x, residual, of_channels, settings) };
    let [weight, bias, mean, variance] = of_channels;
    let (grid, client, added) = (Grid::of(matrix(&x)), x.client.clone(), residual.is_some());
    let channels = grid.columns();
    let parts = empty(&x, Shape::new([grid.groups, 3, channels]), DType::F32);
    let address = x.required_address_type().max(parts.required_address_type());
    sum_rows::launch(
        &client,
        grid.cubes(),
        grid.units(),
        address,
        grid.vector,
        x.clone().into_linear_view(),
        parts.clone().into_linear_view(),
        grid.rows,
        grid.width,
        grid.share,
        grid.lanes,
        grid.height,
        dtype_to_storage_type(x.dtype),
    );
    let statistics = empty(&x, Shape::new([3, channels]), DType::F32);
    let running = [&mean, &variance].map(|old| empty(old, old.meta.shape().clone(), old.dtype));
    let [new_mean, new_variance] = running.clone();
    let ((y, view), (kind, slope)) = (over(&x, 0), settings.activation.kind());
    normalise::launch(
        &client,
        grid.cubes(),
        grid.units(),
        address,
        grid.vector,
        x.clone().into_linear_view(),
        // A missing residual is not read.
        residual.unwrap_or_else(|| parts.clone()).into_linear_view(),
        parts.into_linear_view(),
        weight.clone().into_linear_view(),
        bias.into_linear_view(),
        mean.clone().into_linear_view(),
        variance.into_linear_view(),
        view,
        statistics.clone().into_linear_view(),
        new_mean.into_linear_view(),
        new_variance.into_linear_view(),
        grid.rows,
        grid.width,
        grid.share,
        grid.groups,
        settings.epsilon,
        (1.0 - momentum) as f32,
        momentum as f32,
        slope,
        added,
        kind,
        grid.lanes,
        grid.height,
        [x.dtype, weight.dtype, mean.dtype].map(dtype_to_storage_type),
    );
    BatchNormOutput { y: of_rows(y), running, statistics }
}
