//! Convolution on the CPU: products of the weights with shifted images, without columns.
//!
//! A task copies some images with their padding, `B` bytes of them, into one line of values for each channel. A tap of the kernel is then
//! the same line at another offset. The product of the weights with all taps is computed in registers, 4 channels and 96 pixels at a
//! time. With a stride the input is copied once for each remainder of the taps, so that the pixels of a copy are neighbours. The gradient
//! of the input is computed separately for each remainder. The gradient of the weight reads copies that are ordered by pixels.
//!
//! Scratch memory, with `W` bytes of the weight in f32 and T threads. B are the buffers of a task, of at most 384 KiB or of one row with the
//! rows that the kernel reads ([`Lengths`](super::portions::Lengths), [`WeightLengths`](super::weight_portions::WeightLengths)):
//! - Output and gradient of the input: W + T B (in 16 bits 2 W + T B).
//! - Gradient of the weight: S + T B, with sums S of at most 8 W and 256 KiB, or of T / 8 W where the sums of two groups of images have more (in
//!   16 bits W more).
//! - Gradient of the weight with one input channel in each of several groups: T (two planes of a channel).
//!
//! Multiply-adds of each: images * channels out * channels in / groups * kernel * pixels of the output.

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::tensor::Shape;
use rayon::prelude::*;

use super::Geometry;
use super::correlation::Kernels;
use super::portions::Sizes;
use super::weight::depthwise_gradient;
use super::weight_portions::WeightPortions;
use kiln_operations::cpu::stored::{Stored, from_f32, tensor, to_f32};
use kiln_operations::simd::sums;
use kiln_operations::{by_dtype, simd};

simd! { fn sum(values: &[f32]) -> f32 {
    sums(values, |value| [value, 0.0])[0]
}}

/// The sizes of a convolution of an input of shape `x` with a weight.
fn sizes(x: &Shape, weight: &Shape, geometry: Geometry) -> Sizes {
    Sizes::new(x.dims(), weight.dims(), geometry)
}

/// The output, `[images, channels out, height, width]`.
pub(super) fn forward(x: &FlexTensor, weight: &FlexTensor, bias: &FlexTensor, geometry: Geometry) -> FlexTensor {
    fn run<E: Stored>(x: &FlexTensor, weight: &FlexTensor, bias: &[f32], geometry: Geometry) -> FlexTensor {
        let sizes = sizes(&x.shape(), &weight.shape(), geometry);
        let (x, weight, mut wide) = (x.to_contiguous(), weight.to_contiguous(), vec![]);
        let weight = E::widened(weight.storage::<E>(), &mut wide);
        let Sizes { inputs, outputs, kernel: size, output: [height, width], .. } = sizes;
        let kernel = size[0] * size[1];
        let distances = [outputs * inputs * kernel, inputs * kernel, kernel];
        let kernels = Kernels { values: weight, size, distances };
        let y = sizes.of_input(geometry).run(x.storage::<E>(), kernels, bias);
        tensor(y, Shape::new([sizes.images, geometry.groups * outputs, height, width]))
    }
    let bias = to_f32(bias);
    by_dtype!(x.dtype(), E => run::<E>(x, weight, &bias, geometry), else x.clone())
}

/// The gradient of an input of `shape`.
pub(super) fn input_gradient(
    weight: &FlexTensor,
    gradient: &FlexTensor,
    shape: Shape,
    geometry: Geometry,
) -> FlexTensor {
    fn run<E: Stored>(weight: &FlexTensor, gradient: &FlexTensor, shape: Shape, geometry: Geometry) -> FlexTensor {
        let sizes = sizes(&shape, &weight.shape(), geometry);
        let (gradient, weight, mut wide) = (gradient.to_contiguous(), weight.to_contiguous(), vec![]);
        let weight = E::widened(weight.storage::<E>(), &mut wide);
        let Sizes { inputs, outputs, kernel: size, .. } = sizes;
        let kernel = size[0] * size[1];
        let distances = [outputs * inputs * kernel, kernel, inputs * kernel];
        let kernels = Kernels { values: weight, size, distances };
        tensor(sizes.of_gradient(geometry).run(gradient.storage::<E>(), kernels, &[]), shape)
    }
    by_dtype!(gradient.dtype(), E => run::<E>(weight, gradient, shape, geometry), else gradient.clone())
}

/// The gradient of a weight of `shape`.
pub(super) fn weight_gradient(x: &FlexTensor, gradient: &FlexTensor, shape: Shape, geometry: Geometry) -> FlexTensor {
    fn run<E: Stored>(x: &FlexTensor, gradient: &FlexTensor, shape: &Shape, geometry: Geometry) -> Vec<f32> {
        let sizes = sizes(&x.shape(), shape, geometry);
        let (x, gradient) = (x.to_contiguous(), gradient.to_contiguous());
        let (x, gradient) = (x.storage::<E>(), gradient.storage::<E>());
        match shape.num_elements() {
            0 => vec![],
            _ if gradient.is_empty() => vec![0.0; shape.num_elements()],
            _ if sizes.inputs == 1 && geometry.groups > 1 => {
                depthwise_gradient(&sizes.of_input(geometry), sizes.kernel, x, gradient)
            }
            _ => super::weight::weight_gradient(&WeightPortions::new(sizes, geometry), x, gradient),
        }
    }
    by_dtype!(x.dtype(), E => {
        let dtype = x.dtype();
        let values = run::<E>(x, gradient, &shape, geometry);
        from_f32(values, shape, dtype)
    }, else x.clone())
}

/// The sum over each channel.
pub(super) fn bias_gradient(gradient: &FlexTensor) -> FlexTensor {
    fn run<E: Stored>(gradient: &FlexTensor) -> Vec<f32> {
        let shape = gradient.shape();
        let (channels, plane) = (shape[1], shape[2] * shape[3]);
        let gradient = gradient.to_contiguous();
        let values = gradient.storage::<E>();
        let of_channel = |wide: &mut Vec<f32>, channel| {
            let planes = (0..shape[0]).map(|image| (image * channels + channel) * plane);
            let sums = planes.map(|first| f64::from(sum(E::widened(&values[first..first + plane], wide))));
            sums.sum::<f64>() as f32
        };
        (0..channels).into_par_iter().map_init(Vec::new, of_channel).collect()
    }
    let (dtype, shape) = (gradient.dtype(), Shape::new([gradient.shape()[1]]));
    by_dtype!(dtype, E => from_f32(run::<E>(gradient), shape, dtype), else gradient.clone())
}
