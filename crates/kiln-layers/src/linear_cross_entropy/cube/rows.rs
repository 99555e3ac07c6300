//! The losses of rows of logits, and the gradients of the logits: one launch, in which a cube of units (a thread block) takes a row.
//!
//! The largest logit and the sum of the exponentials are found in one pass (Milakov and Gimelshein 2018); the gradient is written in a
//! second one. Sums are f32 and in a fixed order.

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::{DType, Shape};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeDevice, cubecl};
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::{LinearView, LinearViewMut};
use kiln_operations::cube::{cubes, empty, has, over, total};

use crate::linear_cross_entropy::settings::{Blocks, LossOptions};

/// Units of a cube.
pub(super) const UNITS: usize = 512;

/// Whether the kernel runs on a device. Those of CubeCL's CPU runtime have few units.
pub(crate) fn takes(device: &CubeDevice) -> bool {
    has(device, UNITS, 8, 4 * UNITS)
}

/// The inputs that are there, and what is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Given {
    bias: bool,
    class_weights: bool,
    row_weights: bool,
    ignored: bool,
    smoothing: bool,
    mean: bool,
    gradient: bool,
}

/// The class of a row, its weight, and the weight of its class. Rows that do not count have weight 0 and class 0.
#[cube]
pub(super) fn counted<T: Int>(
    row: usize,
    class_weights: &LinearView<'_, f32>,
    targets: &LinearView<'_, T>,
    row_weights: &LinearView<'_, f32>,
    classes: usize,
    ignored: i32,
    #[comptime] given: Given,
) -> (usize, f32, f32) {
    let target = i32::cast_from(targets.read(row));
    let mut counts = target >= 0 && usize::cast_from(target) < classes;
    if comptime!(given.ignored) {
        counts = counts && target != ignored;
    }
    let mut weight = 1.0f32;
    if comptime!(given.row_weights) {
        weight = row_weights.read(row);
    }
    let weight = select(counts, weight, 0.0f32);
    let target = select(weight == 0.0f32, 0usize, usize::cast_from(target));
    let mut of_class = 1.0f32;
    if comptime!(given.class_weights) {
        of_class = class_weights.read(target);
    }
    (target, weight, of_class)
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
    row_weights: LinearView<'_, f32>,
    divisor: LinearView<'_, f32>,
    mut losses: LinearViewMut<'_, f32>,
    mut gradient: LinearViewMut<'_, G>,
    classes: usize,
    blocks: usize,
    length: usize,
    pitch: usize,
    gradient_pitch: usize,
    first_row: usize,
    ignored: i32,
    on_each: f32,
    on_target: f32,
    #[comptime] given: Given,
    #[define(P, T, G)] _dtypes: [ElemType; 3],
) {
    let (row, rows, unit) = (CUBE_POS, losses.shape(), UNIT_POS as usize);
    if row >= rows {
        terminate!();
    }
    let mut places = Shared::<[f32]>::new_slice(UNITS);
    let mut largest = f32::min_value();
    let mut sum = 0.0f32;
    // With label smoothing: the sums of the classes' weights, and of their products with the logits.
    let mut of_weights = 0.0f32;
    let mut of_logits = 0.0f32;
    let mut block = 0;
    while block < blocks {
        let (begin, first) = (block * length, (block * rows + row) * pitch);
        let end = min(classes, begin + length);
        let mut class = begin + unit;
        while class < end {
            let mut logit = logits.read(first + class - begin);
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
        block += 1;
    }
    let of_unit = largest;
    let largest = largest_of(of_unit, &mut places);
    let sum = total(sum * (of_unit - largest).exp(), &mut places, UNITS);
    let (target, weight, of_class) =
        counted::<T>(first_row + row, &class_weights, &targets, &row_weights, classes, ignored, given);
    let of_target = of_class * on_target;
    let mut mass = of_target;
    let block = target / length;
    let mut logit = logits.read((block * rows + row) * pitch + target - block * length);
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
        let mut scale = weight;
        if comptime!(given.mean) {
            scale = weight / divisor.read(0);
        }
        let factor = mass / sum * scale;
        // The gradient may be written over the logits, of which all units have read the target's by now.
        sync_cube();
        let mut block = 0;
        while block < blocks {
            let (begin, of_row) = (block * length, block * rows + row);
            let mut class = begin + unit;
            while class < begin + length {
                let mut value = 0.0f32;
                if class < classes {
                    let mut logit = logits.read(of_row * pitch + class - begin);
                    if comptime!(given.bias) {
                        logit += f32::cast_from(bias.read(class));
                    }
                    value = (logit - largest).exp() * factor;
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
                }
                let value = select(weight == 0.0f32, 0.0f32, value);
                gradient.write(of_row * gradient_pitch + class - begin, G::cast_from(value));
                class += UNITS;
            }
            block += 1;
        }
    }
}

/// What decides how rows count.
pub(super) struct Rows {
    bias: CubeTensor,
    pub(super) class_weights: CubeTensor,
    pub(super) targets: CubeTensor,
    pub(super) row_weights: CubeTensor,
    pub(super) classes: usize,
    blocks: Blocks,
    /// The class whose rows do not count, if it is one.
    pub(super) ignored: i32,
    pub(super) given: Given,
    on_each: f32,
    on_target: f32,
}

impl Rows {
    /// From bias, weights of the classes, targets, and weights of the rows.
    pub(super) fn new(tensors: [CubeTensor; 4], options: LossOptions, classes: usize, blocks: Blocks) -> Self {
        let there = |tensor: &CubeTensor| tensor.meta.num_elements() > 0;
        let [bias, class_weights, targets, row_weights] = tensors.map(into_contiguous);
        // Other targets to ignore are not classes, so their rows do not count anyway.
        let ignored = options.ignore_index.filter(|class| (0..classes as i64).contains(class));
        let given = Given {
            bias: there(&bias),
            class_weights: there(&class_weights),
            row_weights: there(&row_weights),
            ignored: ignored.is_some(),
            smoothing: options.label_smoothing > 0.0,
            mean: false,
            gradient: false,
        };
        // What is missing is another tensor in f32, which is not read.
        let unread = || empty(&targets, Shape::new([1]), DType::F32);
        let [bias, class_weights, row_weights] =
            [bias, class_weights, row_weights].map(|tensor| if there(&tensor) { tensor } else { unread() });
        Self {
            bias,
            class_weights,
            targets,
            row_weights,
            classes,
            blocks,
            ignored: ignored.unwrap_or(0) as i32,
            given,
            on_each: options.label_smoothing / classes as f32,
            on_target: 1.0 - options.label_smoothing,
        }
    }

    /// Writes the losses of rows from row `first` on, and returns the gradient of their logits `[blocks, rows, length]` in a dtype, if it
    /// is wanted, divided by `total`. Classes that fill the last block have gradient 0. In f32 it takes the memory of the logits.
    pub(super) fn losses(
        &self,
        logits: CubeTensor,
        first: usize,
        losses: CubeTensor,
        total: Option<&CubeTensor>,
        gradient: Option<DType>,
    ) -> Option<CubeTensor> {
        let [count, rows, length]: [usize; 3] = logits.meta.shape().dims();
        // Rows of a product may be padded.
        let (meta, pitch) = (logits.meta.clone(), logits.meta.strides()[1]);
        let line = Shape::new([(count * rows - 1) * pitch + length]);
        let logits =
            CubeTensor::new_contiguous(logits.client.clone(), logits.device.clone(), line, logits.handle, DType::F32);
        let given = Given { mean: total.is_some(), gradient: gradient.is_some(), ..self.given };
        let (gradient, written, gradient_pitch, dtype) = match gradient {
            None => (None, losses.clone().into_linear_view(), length, DType::F32),
            Some(DType::F32) => {
                let (line, view) = over(&logits, 0);
                (Some(CubeTensor { meta, ..line }), view, pitch, DType::F32)
            }
            Some(dtype) => {
                let gradient = empty(&logits, meta.shape().clone(), dtype);
                (Some(gradient.clone()), gradient.into_linear_view(), length, dtype)
            }
        };
        losses_of_rows::launch(
            &logits.client.clone(),
            cubes(&logits.client, rows),
            CubeDim::new_1d(UNITS as u32),
            logits.required_address_type(),
            logits.into_linear_view(),
            self.bias.clone().into_linear_view(),
            self.class_weights.clone().into_linear_view(),
            self.targets.clone().into_linear_view(),
            self.row_weights.clone().into_linear_view(),
            total.unwrap_or(&self.row_weights).clone().into_linear_view(),
            losses.into_linear_view(),
            written,
            self.classes,
            self.blocks.count,
            self.blocks.length,
            pitch,
            gradient_pitch,
            first,
            self.ignored,
            self.on_each,
            self.on_target,
            given,
            [self.bias.dtype, self.targets.dtype, dtype].map(dtype_to_storage_type),
        );
        gradient
    }
}
