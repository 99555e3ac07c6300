//! The backward pass of batch norm in CubeCL.

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::{DType, Shape};
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::{LinearView, LinearViewMut};
use kiln_operations::cube::{empty, fresh, over};

use super::activation::{Kind, through};
use crate::batch_norm::settings::BatchNormSaved;
use crate::channels_last::{of_rows, rows};
use crate::columns::{above, matrix};
use crate::grid::Grid;

/// Where a kernel finds the values that decide the activation's gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Signs {
    /// In the output.
    Output,
    /// In the input, by the arithmetic of the forward pass.
    Input,
}

/// The gradient through the activation at one place, in f32.
#[cube]
fn passed<X: Float, N: Size>(
    gradient: Vector<X, N>,
    x: Vector<X, N>,
    y: Vector<X, N>,
    mean: Vector<f32, N>,
    factor: Vector<f32, N>,
    offset: Vector<f32, N>,
    slope: f32,
    #[comptime] signs: Signs,
    #[comptime] activation: Kind,
) -> Vector<f32, N> {
    let gradient = Vector::<f32, N>::cast_from(gradient);
    match comptime!(signs) {
        Signs::Output => through::<N>(gradient, Vector::cast_from(y), slope, activation),
        Signs::Input => {
            let z = (Vector::<f32, N>::cast_from(x) - mean) * factor + offset;
            through::<N>(gradient, z, slope, activation)
        }
    }
}

/// For each group of rows the sums of the gradient through the activation, and of its products with the normalised input:
/// `[groups, 2, channels]`.
#[cube(launch, address_type = "dynamic")]
fn sum_gradients<X: Float, P: Float, N: Size>(
    gradient: LinearView<'_, Vector<X, N>>,
    x: LinearView<'_, Vector<X, N>>,
    y: LinearView<'_, Vector<X, N>>,
    statistics: LinearView<'_, Vector<f32, N>>,
    weight: LinearView<'_, Vector<P, N>>,
    bias: LinearView<'_, Vector<P, N>>,
    mut parts: LinearViewMut<'_, Vector<f32, N>>,
    rows: usize,
    width: usize,
    share: usize,
    slope: f32,
    #[comptime] signs: Signs,
    #[comptime] activation: Kind,
    #[comptime] lanes: usize,
    #[comptime] height: usize,
    #[define(X, P)] _dtypes: [ElemType; 2],
) {
    let mut sums = Shared::<[Vector<f32, N>]>::new_slice(lanes * height);
    let column = CUBE_POS_X as usize * lanes + UNIT_POS_X as usize;
    let group = CUBE_POS_Y as usize;
    let mut sum = Vector::<f32, N>::new(0.0f32);
    let mut product = Vector::<f32, N>::new(0.0f32);
    if column < width {
        let mean = statistics.read(column) + statistics.read(width + column);
        let deviation = statistics.read(2 * width + column);
        let factor = deviation * Vector::cast_from(weight.read(column));
        let offset = Vector::<f32, N>::cast_from(bias.read(column));
        let end = min((group + 1) * share, rows);
        let mut row = group * share + UNIT_POS_Y as usize;
        while row < end {
            let at = row * width + column;
            let of_x = x.read(at);
            let g = passed::<X, N>(gradient.read(at), of_x, y.read(at), mean, factor, offset, slope, signs, activation);
            sum += g;
            product += g * (Vector::<f32, N>::cast_from(of_x) - mean) * deviation;
            row += height;
        }
    }
    let sum = above::<N>(sum, &mut sums, lanes, height);
    let product = above::<N>(product, &mut sums, lanes, height);
    if UNIT_POS_Y == 0 && column < width {
        parts.write(2 * group * width + column, sum);
        parts.write((2 * group + 1) * width + column, product);
    }
}

/// The gradients of input, weight, bias and residual. Every cube adds the parts of its channels. With `trains`, the statistics are those
/// of the rows.
#[cube(launch, address_type = "dynamic")]
fn input_gradient<X: Float, P: Float, N: Size>(
    gradient: LinearView<'_, Vector<X, N>>,
    x: LinearView<'_, Vector<X, N>>,
    y: LinearView<'_, Vector<X, N>>,
    statistics: LinearView<'_, Vector<f32, N>>,
    weight: LinearView<'_, Vector<P, N>>,
    bias: LinearView<'_, Vector<P, N>>,
    parts: LinearView<'_, Vector<f32, N>>,
    mut of_x: LinearViewMut<'_, Vector<X, N>>,
    mut of_residual: LinearViewMut<'_, Vector<X, N>>,
    mut of_weight: LinearViewMut<'_, Vector<P, N>>,
    mut of_bias: LinearViewMut<'_, Vector<P, N>>,
    rows: usize,
    width: usize,
    share: usize,
    groups: usize,
    slope: f32,
    #[comptime] trains: bool,
    #[comptime] added: bool,
    #[comptime] signs: Signs,
    #[comptime] activation: Kind,
    #[comptime] lanes: usize,
    #[comptime] height: usize,
    #[define(X, P)] _dtypes: [ElemType; 2],
) {
    let mut sums = Shared::<[Vector<f32, N>]>::new_slice(lanes * height);
    let column = CUBE_POS_X as usize * lanes + UNIT_POS_X as usize;
    let place = min(column, width - 1);
    let mut sum = Vector::<f32, N>::new(0.0f32);
    let mut product = Vector::<f32, N>::new(0.0f32);
    let mut part = UNIT_POS_Y as usize;
    while part < groups {
        sum += parts.read(2 * part * width + place);
        product += parts.read((2 * part + 1) * width + place);
        part += height;
    }
    let sum = above::<N>(sum, &mut sums, lanes, height);
    let product = above::<N>(product, &mut sums, lanes, height);
    if CUBE_POS_Y == 0 && UNIT_POS_Y == 0 && column < width {
        of_weight.write(column, Vector::cast_from(product));
        of_bias.write(column, Vector::cast_from(sum));
    }
    if column < width {
        let mean = statistics.read(column) + statistics.read(width + column);
        let deviation = statistics.read(2 * width + column);
        let factor = deviation * Vector::cast_from(weight.read(column));
        let offset = Vector::<f32, N>::cast_from(bias.read(column));
        let count = Vector::<f32, N>::new(f32::cast_from(rows));
        let (sum, product) = (sum / count, product / count);
        let group = CUBE_POS_Y as usize;
        let end = min((group + 1) * share, rows);
        let mut row = group * share + UNIT_POS_Y as usize;
        while row < end {
            let at = row * width + column;
            let value = x.read(at);
            let g =
                passed::<X, N>(gradient.read(at), value, y.read(at), mean, factor, offset, slope, signs, activation);
            let mut inner = g;
            if comptime!(trains) {
                let normal = (Vector::<f32, N>::cast_from(value) - mean) * deviation;
                inner = g - sum - normal * product;
            }
            of_x.write(at, Vector::cast_from(inner * factor));
            if comptime!(added) {
                of_residual.write(at, Vector::cast_from(g));
            }
            row += height;
        }
    }
}

/// The gradients of input, weight, bias and residual. Those of weight and bias have no meaning if no input was saved.
pub(crate) fn backward(
    saved: BatchNormSaved<CubeTensor>,
    gradient: CubeTensor,
    added: bool,
) -> [Option<CubeTensor>; 4] {
    let BatchNormSaved { x, y, statistics, weight, bias, settings } = saved;
    let gradient = rows(gradient);
    let [x, y] = [x, y].map(|tensor| tensor.map(rows));
    let [statistics, weight, bias] = [statistics, weight, bias].map(into_contiguous);
    let signs = if y.is_some() { Signs::Output } else { Signs::Input };
    let (grid, client) = (Grid::of(matrix(&gradient)), gradient.client.clone());
    let parts = empty(&gradient, Shape::new([grid.groups, 2, grid.columns()]), DType::F32);
    let address = gradient.required_address_type().max(parts.required_address_type());
    let dtypes = [gradient.dtype, weight.dtype].map(dtype_to_storage_type);
    let (kind, slope) = settings.activation.kind();
    // The gradient of the residual, or else of the input, takes the memory of the output's gradient, and the other one that of the input.
    let (over_gradient, view) = over(&gradient, 0);
    let over_x = added.then(|| match &x {
        Some(x) => over(x, 1),
        None => fresh(&gradient),
    });
    // A tensor that is missing is another one: what is read from it has no meaning.
    let [x, y] = [x, y].map(|tensor| tensor.unwrap_or_else(|| gradient.clone()));
    sum_gradients::launch(
        &client,
        grid.cubes(),
        grid.units(),
        address,
        grid.vector,
        gradient.clone().into_linear_view(),
        x.clone().into_linear_view(),
        y.clone().into_linear_view(),
        statistics.clone().into_linear_view(),
        weight.clone().into_linear_view(),
        bias.clone().into_linear_view(),
        parts.clone().into_linear_view(),
        grid.rows,
        grid.width,
        grid.share,
        slope,
        signs,
        kind,
        grid.lanes,
        grid.height,
        dtypes,
    );
    let [of_weight, of_bias] = [(); 2].map(|()| empty(&weight, weight.meta.shape().clone(), weight.dtype));
    let (of_x, of_residual, x_view, residual_view) = match over_x {
        Some((of_x, x_view)) => (of_x, Some(over_gradient), x_view, view),
        // The residual's gradient is not written.
        None => (over_gradient, None, view, of_bias.clone().into_linear_view()),
    };
    input_gradient::launch(
        &client,
        grid.cubes(),
        grid.units(),
        address,
        grid.vector,
        gradient.into_linear_view(),
        x.into_linear_view(),
        y.into_linear_view(),
        statistics.into_linear_view(),
        weight.into_linear_view(),
        bias.into_linear_view(),
        parts.into_linear_view(),
        x_view,
        residual_view,
        of_weight.clone().into_linear_view(),
        of_bias.clone().into_linear_view(),
        grid.rows,
        grid.width,
        grid.share,
        grid.groups,
        slope,
        settings.momentum.is_some(),
        added,
        signs,
        kind,
        grid.lanes,
        grid.height,
        dtypes,
    );
    [Some(of_rows(of_x)), Some(of_weight), Some(of_bias), of_residual.map(of_rows)]
}
