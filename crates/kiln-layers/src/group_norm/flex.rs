//! Group norm on the CPU. A task is a group of channels of one sample, which it handles channel by channel.
//!
//! Scratch memory: `8 * samples * channels` bytes in the backward pass, and in 16 bits `2 * 4 * S` bytes for each thread, with the number
//! `S` of values of a channel. About 8 operations for each value forward, 16 backward.

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::tensor::Shape;
use rayon::prelude::*;

use super::GroupNormSettings;
use kiln_operations::cpu::stored::{Stored, from_f32, owned, tensor, to_f32};
use kiln_operations::simd::{pair_sums, sums};
use kiln_operations::{by_dtype, simd};

simd! { fn sum(x: &[f32]) -> f32 { sums(x, |x| [x, 0.0])[0] } }

simd! { fn squares(x: &[f32], mean: f32) -> f32 { sums(x, |x| [(x - mean) * (x - mean), 0.0])[0] } }

simd! { fn scaled(y: &mut [f32], x: &[f32], mean: f32, factor: f32, bias: f32) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y = (x - mean).mul_add(factor, bias));
}}

simd! { fn products(gradient: &[f32], x: &[f32], mean: f32, deviation: f32) -> [f32; 2] {
    pair_sums(gradient, x, |g, x| [g * ((x - mean) * deviation), g])
}}

simd! { fn input_gradient(gradient: &mut [f32], x: &[f32], mean: f32, factor: f32, slope: f32, shift: f32) {
    gradient.iter_mut().zip(x).for_each(|(g, x)| *g = g.mul_add(factor, (x - mean).mul_add(slope, shift)));
}}

/// The sizes of an input: `samples * groups` groups of `members` channels, each of `values` values.
struct Sizes {
    samples: usize,
    channels: usize,
    /// Channels of a group.
    members: usize,
    /// Values of a channel.
    values: usize,
}

impl Sizes {
    fn new(x: &FlexTensor, groups: usize) -> Self {
        let shape = x.shape();
        let (samples, channels, values) = (shape[0], shape[1], shape.iter().skip(2).product());
        Self { samples, channels, members: channels / groups, values }
    }

    /// Values of a group.
    fn group(&self) -> usize {
        (self.members * self.values).max(1)
    }
}

/// A parameter of each channel, or `otherwise` if there is none.
fn parameter(values: &FlexTensor, channels: usize, otherwise: f32) -> Vec<f32> {
    let mut values = to_f32(values);
    values.resize(channels, otherwise);
    values
}

/// The output, and mean and reciprocal deviation of each group in f32.
pub(super) fn forward(
    x: &FlexTensor,
    weight: &FlexTensor,
    bias: &FlexTensor,
    settings: GroupNormSettings,
) -> [FlexTensor; 2] {
    fn run<E: Stored>(x: &FlexTensor, weight: &[f32], bias: &[f32], settings: GroupNormSettings) -> [FlexTensor; 2] {
        let (x, sizes) = (x.to_contiguous(), Sizes::new(x, settings.groups));
        let mut y = vec![E::zeroed(); x.shape().num_elements()];
        let mut statistics = vec![0.0f32; 2 * sizes.samples * settings.groups];
        let share = 1.0 / sizes.group() as f64;
        let tasks = y.par_chunks_mut(sizes.group()).zip(x.storage::<E>().par_chunks(sizes.group()));
        tasks.zip(statistics.par_chunks_mut(2)).enumerate().for_each_init(
            || (vec![], vec![]),
            |(wide, kept), (index, ((y, x), statistics))| {
                let channels = || x.chunks_exact(sizes.values);
                let mut total = |each: &dyn Fn(&[f32]) -> f32| {
                    channels().map(|x| f64::from(each(E::widened(x, wide)))).sum::<f64>()
                };
                let mean = (total(&sum) * share) as f32;
                let variance = (total(&|x| squares(x, mean)) * share) as f32;
                let deviation = 1.0 / (variance + settings.epsilon).sqrt();
                (statistics[0], statistics[1]) = (mean, deviation);
                let first = index % settings.groups * sizes.members;
                for ((y, x), channel) in y.chunks_exact_mut(sizes.values).zip(channels()).zip(first..) {
                    let (x, factor) = (E::widened(x, wide), deviation * weight[channel]);
                    E::written(y, kept, |y| scaled(y, x, mean, factor, bias[channel]));
                }
            },
        );
        let shape = Shape::new([sizes.samples, settings.groups, 2]);
        [tensor(y, x.shape()), tensor(statistics, shape)]
    }
    let channels = x.shape()[1];
    let (weight, bias) = (parameter(weight, channels, 1.0), parameter(bias, channels, 0.0));
    by_dtype!(x.dtype(), E => run::<E>(x, &weight, &bias, settings), else [x.clone(), x.clone()])
}

/// The gradients of input, weight and bias. The input's gradient is written over `gradient` if no other handle to it exists.
pub(super) fn backward(
    x: &FlexTensor,
    statistics: &FlexTensor,
    weight: &FlexTensor,
    gradient: FlexTensor,
    settings: GroupNormSettings,
    wanted: [bool; 3],
) -> [Option<FlexTensor>; 3] {
    fn run<E: Stored>(
        x: &FlexTensor,
        statistics: &[f32],
        weight: &[f32],
        mut dx: FlexTensor,
        settings: GroupNormSettings,
        wanted: bool,
    ) -> (FlexTensor, Vec<f32>) {
        let (x, sizes) = (x.to_contiguous(), Sizes::new(x, settings.groups));
        // The gradients of weight and bias for each channel of a sample.
        let mut partial = vec![0.0f32; 2 * sizes.samples * sizes.channels];
        let share = 1.0 / sizes.group() as f64;
        let tasks = dx.storage_mut::<E>().par_chunks_mut(sizes.group()).zip(x.storage::<E>().par_chunks(sizes.group()));
        let parts = partial.par_chunks_mut((2 * sizes.members).max(1)).zip(statistics.par_chunks(2));
        tasks.zip(parts).enumerate().for_each_init(
            || (vec![], vec![]),
            |(wide, kept), (index, ((dx, x), (partial, statistics)))| {
                let (mean, deviation) = (statistics[0], statistics[1]);
                let first = index % settings.groups * sizes.members;
                let mut sums = [0.0f64; 2];
                let channels = dx.chunks_exact(sizes.values).zip(x.chunks_exact(sizes.values));
                for (((dx, x), partial), channel) in channels.zip(partial.chunks_exact_mut(2)).zip(first..) {
                    let (dx, x) = (E::widened(dx, kept), E::widened(x, wide));
                    partial.copy_from_slice(&products(dx, x, mean, deviation));
                    sums[0] += f64::from(partial[0] * weight[channel]);
                    sums[1] += f64::from(partial[1] * weight[channel]);
                }
                if !wanted {
                    return;
                }
                let [product, sum] = sums.map(|sum| (sum * share) as f32);
                let channels = dx.chunks_exact_mut(sizes.values).zip(x.chunks_exact(sizes.values));
                for ((dx, x), channel) in channels.zip(first..) {
                    let x = E::widened(x, wide);
                    let (factor, slope) = (deviation * weight[channel], -deviation * deviation * product);
                    E::changed(dx, kept, |dx| input_gradient(dx, x, mean, factor, slope, -deviation * sum));
                }
            },
        );
        (dx, partial)
    }
    let channels = x.shape()[1];
    let dx = owned(gradient);
    let statistics = to_f32(statistics);
    let factors = parameter(weight, channels, 1.0);
    let (dx, partial) =
        by_dtype!(x.dtype(), E => run::<E>(x, &statistics, &factors, dx, settings, wanted[0]), else (dx, vec![]));
    let of_channels = |part: usize| {
        let mut sums = vec![0.0f32; channels];
        for sample in partial.chunks_exact((2 * channels).max(1)) {
            sums.iter_mut().zip(sample.chunks_exact(2)).for_each(|(sum, channel)| *sum += channel[part]);
        }
        from_f32(sums, Shape::new([channels]), weight.dtype())
    };
    [wanted[0].then_some(dx), wanted[1].then(|| of_channels(0)), wanted[2].then(|| of_channels(1))]
}
