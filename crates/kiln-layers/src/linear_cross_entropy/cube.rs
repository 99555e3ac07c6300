//! The losses of rows of logits in CubeCL: one launch, in which a cube of units (a thread block) takes a row.
//!
//! The largest logit and the sum of the exponentials are found in one pass (Milakov and Gimelshein 2018); the gradient is written in a
//! second one. Sums are f32 and in a fixed order.

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::{DType, Shape};
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::{LinearView, LinearViewMut};
use kiln_operations::cube::empty;

use super::row_losses::{RowInputs, RowLosses};
use crate::columns::total;

/// Units of a cube.
const UNITS: usize = 512;

/// Whether the kernel runs on a device. Those of CubeCL's CPU runtime have few units.
pub(super) fn takes(device: &burn_cubecl::CubeDevice) -> bool {
    device.client().properties().hardware.max_units_per_cube as usize >= UNITS
}

/// The inputs that are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Given {
    bias: bool,
    class_weights: bool,
    smoothing: bool,
    gradient: bool,
}

/// The largest of the units' values, the same in all units. `values` has a place for each.
#[cube]
fn largest_of(value: f32, values: &mut Shared<[f32]>) -> f32 {
    let unit = UNIT_POS as usize;
    let levels = comptime!(UNITS.ilog2());
    values[unit] = value;
    sync_cube();
    #[unroll]
    for level in 0..levels {
        let half = UNITS >> (level as usize + 1);
        if unit < half {
            values[unit] = max(values[unit], values[unit + half]);
        }
        sync_cube();
    }
    let largest = values[0];
    sync_cube();
    largest
}

#[cube(launch, address_type = "dynamic")]
fn losses_of_rows<P: Float, T: Int, G: Float>(
    logits: LinearView<'_, f32>,
    bias: LinearView<'_, P>,
    class_weights: LinearView<'_, f32>,
    targets: LinearView<'_, T>,
    weights: LinearView<'_, f32>,
    of_class: LinearView<'_, f32>,
    divisor: LinearView<'_, f32>,
    mut losses: LinearViewMut<'_, f32>,
    mut gradient: LinearViewMut<'_, G>,
    classes: usize,
    on_each: f32,
    on_target: f32,
    #[comptime] given: Given,
    #[define(P, T, G)] _dtypes: [ElemType; 3],
) {
    let mut places = Shared::<[f32]>::new_slice(UNITS);
    let (row, unit) = (CUBE_POS, UNIT_POS as usize);
    let first = row * classes;
    let mut largest = f32::min_value();
    let mut sum = 0.0f32;
    // With label smoothing: the sums of the classes' weights, and of their products with the logits.
    let mut of_weights = 0.0f32;
    let mut of_logits = 0.0f32;
    let mut class = unit;
    while class < classes {
        let mut logit = logits.read(first + class);
        if comptime!(given.bias) {
            logit += f32::cast_from(bias.read(class));
        }
        if logit > largest {
            sum = sum * (largest - logit).exp() + 1.0f32;
            largest = logit;
        } else {
            sum += (logit - largest).exp();
        }
        if comptime!(given.smoothing) {
            let mut weight = 1.0f32;
            if comptime!(given.class_weights) {
                weight = class_weights.read(class);
            }
            of_weights += weight;
            of_logits += weight * logit;
        }
        class += UNITS;
    }
    let of_unit = largest;
    let largest = largest_of(of_unit, &mut places);
    let sum = total(sum * (of_unit - largest).exp(), &mut places, UNITS);
    let weight = weights.read(row);
    let target = usize::cast_from(targets.read(row));
    let of_target = of_class.read(row) * on_target;
    let mut mass = of_target;
    let mut logit = logits.read(first + target);
    if comptime!(given.bias) {
        logit += f32::cast_from(bias.read(target));
    }
    let mut expected = (logit - largest) * of_target;
    if comptime!(given.smoothing) {
        let of_weights = total(of_weights, &mut places, UNITS);
        let of_logits = total(of_logits, &mut places, UNITS);
        mass += of_weights * on_each;
        expected += (of_logits - largest * of_weights) * on_each;
    }
    if unit == 0 {
        let loss = (mass * sum.ln() - expected) * weight;
        losses.write(row, select(weight == 0.0f32, 0.0f32, loss));
    }
    if comptime!(given.gradient) {
        let scale = weight / divisor.read(0);
        let factor = mass / sum * scale;
        let mut class = unit;
        while class < classes {
            let mut logit = logits.read(first + class);
            if comptime!(given.bias) {
                logit += f32::cast_from(bias.read(class));
            }
            let mut value = (logit - largest).exp() * factor;
            if comptime!(given.smoothing) {
                let mut weight = 1.0f32;
                if comptime!(given.class_weights) {
                    weight = class_weights.read(class);
                }
                value -= weight * (scale * on_each);
            }
            if class == target {
                value -= of_target * scale;
            }
            gradient.write(first + class, G::cast_from(select(weight == 0.0f32, 0.0f32, value)));
            class += UNITS;
        }
    }
}

/// The losses, and the gradient if it is wanted.
pub(super) fn row_losses(
    settings: RowLosses,
    inputs: RowInputs<CubeTensor, CubeTensor>,
) -> (CubeTensor, Option<CubeTensor>) {
    let RowInputs { logits, bias, class_weights, targets, weights, of_class, divisor } = inputs;
    let [logits, targets, weights, of_class] = [logits, targets, weights, of_class].map(into_contiguous);
    let [rows, classes]: [usize; 2] = logits.meta.shape().dims();
    let there = |tensor: &CubeTensor| tensor.meta.num_elements() > 0;
    let given = Given {
        bias: there(&bias),
        class_weights: there(&class_weights),
        smoothing: settings.on_each > 0.0,
        gradient: settings.gradient.is_some(),
    };
    // What is missing is another tensor, which is not read.
    let or_weights = |tensor: CubeTensor| if there(&tensor) { into_contiguous(tensor) } else { weights.clone() };
    let [bias, class_weights] = [bias, class_weights].map(or_weights);
    let losses = empty(&logits, Shape::new([rows, 1]), DType::F32);
    let gradient = settings.gradient.map(|dtype| empty(&logits, logits.meta.shape().clone(), dtype));
    let written = gradient.clone().unwrap_or_else(|| losses.clone());
    losses_of_rows::launch(
        &logits.client.clone(),
        CubeCount::Static(rows as u32, 1, 1),
        CubeDim::new_1d(UNITS as u32),
        logits.required_address_type(),
        logits.into_linear_view(),
        bias.clone().into_linear_view(),
        class_weights.into_linear_view(),
        targets.clone().into_linear_view(),
        weights.into_linear_view(),
        of_class.into_linear_view(),
        divisor.into_linear_view(),
        losses.clone().into_linear_view(),
        written.clone().into_linear_view(),
        classes,
        settings.on_each,
        settings.on_target,
        given,
        [bias.dtype, targets.dtype, written.dtype].map(dtype_to_storage_type),
    );
    (losses, gradient)
}
