//! Group norm in CubeCL: one launch forward, three backward. Sums are f32 and in a fixed order.
//!
//! Forward, a cube of units (a thread block) takes a group of a sample. Backward, it takes a channel of a sample, and the sums of the
//! channels are those of the groups. Tensors that are not stored in the order of their dimensions are copied first.

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::{DType, Shape};
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::{LinearView, LinearViewMut};
use kiln_operations::cube::{cubes, empty, has, total};

use super::GroupNormSettings;
use super::composed::sizes;

/// Units of a cube.
const UNITS: usize = 256;

pub(super) fn takes(device: &burn_cubecl::CubeDevice) -> bool {
    has(device, UNITS, 6, 4 * UNITS)
}

/// `count` is the number of values of a group, `length` that of a channel, `members` the channels of a group.
#[cube(launch, address_type = "dynamic")]
fn normalise_groups<X: Float, P: Float>(
    x: LinearView<'_, X>,
    weight: LinearView<'_, P>,
    bias: LinearView<'_, P>,
    mut y: LinearViewMut<'_, X>,
    mut statistics: LinearViewMut<'_, f32>,
    groups: usize,
    members: usize,
    length: usize,
    share: f32,
    epsilon: f32,
    #[comptime] weighted: bool,
    #[comptime] biased: bool,
    #[define(X, P)] _dtypes: [ElemType; 2],
) {
    if !statistics.is_in_bounds(2 * CUBE_POS) {
        terminate!();
    }
    let mut sums = Shared::<[f32]>::new_slice(UNITS);
    let unit = UNIT_POS as usize;
    let count = members * length;
    let (first, channel) = (CUBE_POS * count, CUBE_POS % groups * members);
    let mut sum = 0.0f32;
    let mut place = unit;
    while place < count {
        sum += f32::cast_from(x.read(first + place));
        place += UNITS;
    }
    let mean = total(sum, &mut sums, UNITS) * share;
    let mut squares = 0.0f32;
    let mut place = unit;
    while place < count {
        let value = f32::cast_from(x.read(first + place)) - mean;
        squares += value * value;
        place += UNITS;
    }
    let deviation = 1.0f32 / (total(squares, &mut sums, UNITS) * share + epsilon).sqrt();
    let mut place = unit;
    while place < count {
        let mut value = (f32::cast_from(x.read(first + place)) - mean) * deviation;
        if comptime!(weighted) {
            value *= f32::cast_from(weight.read(channel + place / length));
        }
        if comptime!(biased) {
            value += f32::cast_from(bias.read(channel + place / length));
        }
        y.write(first + place, X::cast_from(value));
        place += UNITS;
    }
    if unit == 0 {
        statistics.write(2 * CUBE_POS, mean);
        statistics.write(2 * CUBE_POS + 1, deviation);
    }
}

/// The sums over each channel of each sample of the gradient, and of its products with the normalised input: `[samples, channels, 2]`.
#[cube(launch, address_type = "dynamic")]
fn sum_channels<X: Float, G: Float>(
    x: LinearView<'_, X>,
    statistics: LinearView<'_, f32>,
    gradient: LinearView<'_, G>,
    mut parts: LinearViewMut<'_, f32>,
    members: usize,
    length: usize,
    #[define(X, G)] _dtypes: [ElemType; 2],
) {
    if !parts.is_in_bounds(2 * CUBE_POS) {
        terminate!();
    }
    let mut sums = Shared::<[f32]>::new_slice(UNITS);
    let (unit, first, group) = (UNIT_POS as usize, CUBE_POS * length, CUBE_POS / members);
    let (mean, deviation) = (statistics.read(2 * group), statistics.read(2 * group + 1));
    let mut sum = 0.0f32;
    let mut product = 0.0f32;
    let mut place = unit;
    while place < length {
        let g = f32::cast_from(gradient.read(first + place));
        sum += g;
        product += g * (f32::cast_from(x.read(first + place)) - mean) * deviation;
        place += UNITS;
    }
    let sum = total(sum, &mut sums, UNITS);
    let product = total(product, &mut sums, UNITS);
    if unit == 0 {
        parts.write(2 * CUBE_POS, sum);
        parts.write(2 * CUBE_POS + 1, product);
    }
}

/// The gradient of the input.
#[cube(launch, address_type = "dynamic")]
fn group_input_gradient<X: Float, P: Float, G: Float>(
    x: LinearView<'_, X>,
    statistics: LinearView<'_, f32>,
    weight: LinearView<'_, P>,
    gradient: LinearView<'_, G>,
    parts: LinearView<'_, f32>,
    mut dx: LinearViewMut<'_, X>,
    channels: usize,
    members: usize,
    length: usize,
    share: f32,
    #[comptime] weighted: bool,
    #[define(X, P, G)] _dtypes: [ElemType; 3],
) {
    if !parts.is_in_bounds(2 * CUBE_POS) {
        terminate!();
    }
    let (first, group) = (CUBE_POS * length, CUBE_POS / members);
    let (mean, deviation) = (statistics.read(2 * group), statistics.read(2 * group + 1));
    let mut sum = 0.0f32;
    let mut product = 0.0f32;
    let mut factor = 1.0f32;
    let mut member = 0;
    while member < members {
        let of_channel = group * members + member;
        let mut of_weight = 1.0f32;
        if comptime!(weighted) {
            of_weight = f32::cast_from(weight.read(of_channel % channels));
        }
        sum += of_weight * parts.read(2 * of_channel);
        product += of_weight * parts.read(2 * of_channel + 1);
        factor = select(of_channel == CUBE_POS, of_weight, factor);
        member += 1;
    }
    let mut place = UNIT_POS as usize;
    while place < length {
        let normal = (f32::cast_from(x.read(first + place)) - mean) * deviation;
        let g = f32::cast_from(gradient.read(first + place)) * factor;
        dx.write(first + place, X::cast_from((g - sum * share - normal * (product * share)) * deviation));
        place += UNITS;
    }
}

/// The gradients of weight and bias: the sums over the samples.
#[cube(launch, address_type = "dynamic")]
fn add_samples<P: Float>(
    parts: LinearView<'_, f32>,
    mut of_weight: LinearViewMut<'_, P>,
    mut of_bias: LinearViewMut<'_, P>,
    samples: usize,
    channels: usize,
    #[define(P)] _dtype: ElemType,
) {
    let channel = ABSOLUTE_POS;
    if channel < channels {
        let mut weight = 0.0f32;
        let mut bias = 0.0f32;
        let mut sample = 0;
        while sample < samples {
            bias += parts.read(2 * (sample * channels + channel));
            weight += parts.read(2 * (sample * channels + channel) + 1);
            sample += 1;
        }
        of_weight.write(channel, P::cast_from(weight));
        of_bias.write(channel, P::cast_from(bias));
    }
}

fn grid(client: &Client, count: usize) -> (CubeCount, CubeDim) {
    (cubes(client, count), CubeDim::new_1d(UNITS as u32))
}

/// A parameter of each channel and whether there is one. One that is missing is not read.
fn parameter(parameter: CubeTensor, otherwise: &CubeTensor) -> (CubeTensor, bool) {
    match parameter.meta.num_elements() {
        0 => (otherwise.clone(), false),
        _ => (into_contiguous(parameter), true),
    }
}

/// The output, and mean and reciprocal deviation of each group of a sample in f32, `[samples, groups, 2]`.
pub(super) fn forward(
    x: CubeTensor,
    weight: CubeTensor,
    bias: CubeTensor,
    settings: GroupNormSettings,
) -> [CubeTensor; 2] {
    let [samples, groups, members, length] = sizes(x.meta.shape(), settings.groups);
    let y = empty(&x, x.meta.shape().clone(), x.dtype);
    let statistics = empty(&x, Shape::new([samples, groups, 2]), DType::F32);
    let (x, dtype) = (into_contiguous(x), weight.dtype);
    let [(weight, weighted), (bias, biased)] = [weight, bias].map(|values| parameter(values, &statistics));
    let dtype = if weighted || biased { dtype } else { DType::F32 };
    let (count, units) = grid(&x.client, samples * groups);
    normalise_groups::launch(
        &x.client.clone(),
        count,
        units,
        x.required_address_type(),
        x.clone().into_linear_view(),
        weight.into_linear_view(),
        bias.into_linear_view(),
        y.clone().into_linear_view(),
        statistics.clone().into_linear_view(),
        groups,
        members,
        length,
        1.0 / (members * length) as f32,
        settings.epsilon,
        weighted,
        biased,
        [x.dtype, dtype].map(dtype_to_storage_type),
    );
    [y, statistics]
}

/// The gradients of input, weight and bias.
pub(super) fn backward(
    [x, statistics, weight, gradient]: [CubeTensor; 4],
    settings: GroupNormSettings,
) -> [CubeTensor; 3] {
    let [samples, groups, members, length] = sizes(x.meta.shape(), settings.groups);
    let channels = groups * members;
    let (dtype, unused) = (weight.dtype, weight.clone());
    let [x, statistics, gradient] = [x, statistics, gradient].map(into_contiguous);
    let (weight, weighted) = parameter(weight, &statistics);
    let of_parameters = if weighted { dtype } else { DType::F32 };
    let dx = empty(&x, x.meta.shape().clone(), x.dtype);
    let parts = empty(&x, Shape::new([samples, channels, 2]), DType::F32);
    let [of_weight, of_bias] = [(); 2].map(|()| empty(&x, Shape::new([channels]), dtype));
    let (client, address) = (x.client.clone(), x.required_address_type());
    let ((count, units), dtypes) = (grid(&client, samples * channels), [x.dtype, of_parameters, gradient.dtype]);
    let [of_x, of_weights, of_gradient] = dtypes.map(dtype_to_storage_type);
    sum_channels::launch(
        &client,
        count.clone(),
        units,
        address,
        x.clone().into_linear_view(),
        statistics.clone().into_linear_view(),
        gradient.clone().into_linear_view(),
        parts.clone().into_linear_view(),
        members,
        length,
        [of_x, of_gradient],
    );
    group_input_gradient::launch(
        &client,
        count,
        units,
        address,
        x.into_linear_view(),
        statistics.into_linear_view(),
        weight.into_linear_view(),
        gradient.into_linear_view(),
        parts.clone().into_linear_view(),
        dx.clone().into_linear_view(),
        channels,
        members,
        length,
        1.0 / (members * length) as f32,
        weighted,
        [of_x, of_weights, of_gradient],
    );
    if !weighted {
        return [dx, unused.clone(), unused];
    }
    let (count, units) = grid(&client, channels.div_ceil(UNITS));
    add_samples::launch(
        &client,
        count,
        units,
        address,
        parts.into_linear_view(),
        of_weight.clone().into_linear_view(),
        of_bias.clone().into_linear_view(),
        samples,
        channels,
        dtype_to_storage_type(dtype),
    );
    [dx, of_weight, of_bias]
}
