//! The gradient of a convolution's weight.

use std::ops::Range;

use rayon::prelude::*;

use super::correlation::Buffers;
use super::plan::{Side, Tap, held};
use super::portions::{Correlation, Sizes};
use super::settings::{LANES, PIXELS};
use super::tile::{Factors, add_products};
use super::weight_portions::{WeightLengths, WeightPortions, depthwise_lengths};
use kiln_operations::cpu::buffers::{run_with_buffers, widened_buffers};
use kiln_operations::cpu::stored::{Stored, group};
use kiln_operations::simd;
use kiln_operations::simd::pair_sums;

simd! { fn product(left: &[f32], right: &[f32]) -> f32 {
    pair_sums(left, right, |left, right| [left * right, 0.0])[0]
}}

/// The input and the gradient of the output, in their memory layout.
struct Job<'a, E> {
    portions: &'a WeightPortions,
    x: &'a [E],
    gradient: &'a [E],
}

/// Buffers that a task uses again.
struct Pixels {
    /// Pixel by pixel, the input's channels of a group.
    x: Vec<f32>,
    /// For each block of output channels: pixel by pixel, the gradients of the block.
    gradient: Vec<f32>,
    offsets: Vec<usize>,
    wide: Vec<f32>,
}

impl Pixels {
    /// Buffers for tasks on values of type `E`.
    fn new<E: Stored>(lengths: WeightLengths) -> Self {
        let WeightLengths { x, gradient, offsets, wide, .. } = lengths;
        let [wide] = widened_buffers::<E, 1>(wide);
        Self {
            x: Vec::with_capacity(x),
            gradient: Vec::with_capacity(gradient),
            offsets: Vec::with_capacity(offsets),
            wide,
        }
    }
}

/// The gradient of the weight, `[groups * outputs, inputs, kernel height, kernel width]`.
pub(super) fn weight_gradient<E: Stored>(portions: &WeightPortions, x: &[E], gradient: &[E]) -> Vec<f32> {
    let (sizes, image_groups) = (&portions.sizes, portions.image_groups);
    let row = sizes.inputs * sizes.kernel[0] * sizes.kernel[1];
    let job = Job { portions, x, gradient };
    let lengths = portions.lengths();
    let pixels = || Pixels::new::<E>(lengths);
    let mut out = vec![0.0f32; portions.channels() * row];
    let parts = out.par_chunks_mut(portions.part * row).enumerate();
    if image_groups == 1 {
        let buffers = || (Vec::with_capacity(lengths.sums), pixels());
        run_with_buffers(parts, portions.tasks(), buffers, |(sums, pixels), (index, out)| {
            let channels = portions.part(index);
            sums.clear();
            sums.resize(portions.sums(channels.len()), 0.0);
            job.run(0..sizes.images, channels, sums, pixels);
            out.chunks_mut(row).enumerate().for_each(|(channel, out)| portions.add(sums, channel, out));
        });
        return out;
    }
    let each = portions.sums(portions.part.min(portions.channels()));
    let mut kept = vec![0.0f32; portions.kept()];
    let images = |task: usize| group(task % image_groups, sizes.images, image_groups);
    let tasks = kept.par_chunks_mut(each).enumerate().filter(|(task, _)| !images(*task).is_empty());
    run_with_buffers(tasks, portions.tasks(), pixels, |pixels, (task, sums)| {
        job.run(images(task), portions.part(task / image_groups), sums, pixels);
    });
    parts.zip(kept.par_chunks(image_groups * each)).for_each(|((_, out), sums)| {
        out.par_chunks_mut(row).enumerate().for_each(|(channel, out)| {
            sums.chunks_exact(each).for_each(|sums| portions.add(sums, channel, out));
        });
    });
    out
}

impl WeightPortions {
    /// Adds the sums of a channel of a task to its gradient.
    fn add(&self, sums: &[f32], channel: usize, out: &mut [f32]) {
        let taps = self.sizes.kernel[0] * self.sizes.kernel[1];
        let sums = &sums[self.row(channel) * self.columns..][..self.columns];
        for run in &self.runs {
            for (tap, sums) in sums[run.column..][..run.lanes].chunks_exact(self.sizes.inputs).enumerate() {
                let out = out[run.tap + tap..].iter_mut().step_by(taps);
                out.zip(sums).for_each(|(out, sum)| *out += sum);
            }
        }
    }
}

impl<E: Stored> Job<'_, E> {
    /// Adds the products of some images to the sums of some output channels.
    fn run(&self, images: Range<usize>, channels: Range<usize>, sums: &mut [f32], pixels: &mut Pixels) {
        let portions = self.portions;
        let (Sizes { outputs, output, .. }, columns) = (portions.sizes, portions.columns);
        let ([at_a_time, rows], block) = (portions.together(channels.len().min(outputs)), portions.block());
        for group in channels.start / outputs..channels.end.div_ceil(outputs) {
            let first = channels.start.max(group * outputs);
            let part = first..channels.end.min((group + 1) * outputs);
            let sums = &mut sums[portions.row(first - channels.start) * columns..];
            let sums = &mut sums[..part.len().next_multiple_of(block) * columns];
            for image in images.clone().step_by(at_a_time) {
                let images = image..(image + at_a_time).min(images.end);
                for row in (0..output[0]).step_by(rows) {
                    let rows = row..(row + rows).min(output[0]);
                    self.copy_input(images.clone(), group, rows.clone(), pixels);
                    self.copy_gradient(images.clone(), part.clone(), rows, pixels);
                    let Pixels { x, gradient, offsets, .. } = &*pixels;
                    for run in &portions.runs {
                        let lanes = run.lanes.next_multiple_of(LANES);
                        let out = (&mut sums[run.column..], columns, lanes);
                        let factors = Factors { values: gradient, block, terms: offsets.len(), first: 0 };
                        add_products(out, factors, &x[run.offset..], offsets, PIXELS);
                    }
                }
            }
        }
    }

    /// Copies the values of a group's input that some rows of outputs read, and notes where each output pixel begins in the copy.
    fn copy_input(&self, images: Range<usize>, group: usize, rows: Range<usize>, pixels: &mut Pixels) {
        let Pixels { x, offsets, wide, .. } = pixels;
        let WeightPortions { sizes, geometry, width: copied, .. } = *self.portions;
        let Sizes { inputs, input: [height, width], output, .. } = sizes;
        let ([down, right], [top, left]) = (geometry.stride, geometry.before);
        let image_rows = self.portions.input_rows(rows.len());
        x.clear();
        x.resize(images.len() * image_rows * copied * inputs + LANES, 0.0);
        offsets.clear();
        let start = (down * rows.start) as isize - top as isize;
        let columns = held(width, -(left as isize), 1, 0..copied);
        for (index, image) in images.enumerate() {
            for line in held(height, start, 1, 0..image_rows) {
                let at = (index * image_rows + line) * copied;
                let to = &mut x[(at + columns.start) * inputs..(at + columns.end) * inputs];
                for channel in 0..inputs {
                    let plane = (image * geometry.groups + group) * inputs + channel;
                    let row = plane * height + line.saturating_add_signed(start);
                    let row = E::widened(&self.x[row * width..][..width], wide);
                    let row = &row[columns.start.saturating_sub(left)..];
                    to.chunks_exact_mut(inputs).zip(row).for_each(|(pixel, value)| pixel[channel] = *value);
                }
            }
            for row in 0..rows.len() {
                let at = (index * image_rows + row * down) * copied;
                offsets.extend((0..output[1]).map(|column| (at + column * right) * inputs));
            }
        }
    }

    /// Copies the gradients of some output channels.
    fn copy_gradient(&self, images: Range<usize>, channels: Range<usize>, rows: Range<usize>, pixels: &mut Pixels) {
        let Pixels { gradient, wide, .. } = pixels;
        let (Sizes { output: [height, width], .. }, block) = (self.portions.sizes, self.portions.block());
        let each = rows.len() * width;
        let all = images.len() * each;
        gradient.clear();
        gradient.resize(channels.len().next_multiple_of(block) * all, 0.0);
        for (index, image) in images.enumerate() {
            for (row, channel) in channels.clone().enumerate() {
                let plane = image * self.portions.channels() + channel;
                let values = &self.gradient[(plane * height + rows.start) * width..][..each];
                let values = E::widened(values, wide);
                let to = &mut gradient[(row / block * all + index * each) * block..];
                to.chunks_exact_mut(block).zip(values).for_each(|(pixel, value)| pixel[row % block] = *value);
            }
        }
    }
}

/// The gradient of a weight with one input channel a group, tap by tap: products of the gradient with the shifted input.
pub(super) fn depthwise_gradient<E: Stored>(
    correlation: &Correlation,
    kernel: [usize; 2],
    x: &[E],
    gradient: &[E],
) -> Vec<f32> {
    let Correlation { images, groups, targets: outputs, height, width, .. } = correlation;
    let (taps, pitch) = (kernel[0] * kernel[1], width.pitch());
    let places = |side: &Side| -> Vec<Tap> { side.classes.iter().flat_map(|class| class.taps.clone()).collect() };
    let (down, right) = (places(height), places(width));
    let mut out = vec![0.0f32; groups * outputs * taps];
    let (lengths, lanes) = depthwise_lengths(correlation);
    let buffers = || (Buffers::new::<E>(lengths), Vec::with_capacity(lanes));
    run_with_buffers(
        out.par_chunks_mut(outputs * taps).enumerate(),
        *groups,
        buffers,
        |(buffers, flat): &mut (Buffers, Vec<f32>), (group, out)| {
            for image in 0..*images {
                let placed = correlation.placed(image..image + 1, 0..height.target);
                correlation.copy(x, group, 0..1, &placed, buffers);
                for (output, out) in out.chunks_exact_mut(taps).enumerate() {
                    let plane = (image * groups + group) * outputs + output;
                    flat.clear();
                    flat.resize(placed.lanes, 0.0);
                    for row in 0..height.target {
                        let values = &gradient[(plane * height.target + row) * width.target..][..width.target];
                        flat[row * pitch..][..width.target].copy_from_slice(E::widened(values, &mut buffers.wide));
                    }
                    for (index, out) in out.iter_mut().enumerate() {
                        let tap = [down[index / kernel[1]], right[index % kernel[1]]];
                        let from = correlation.offset(&placed, 0, tap);
                        *out += product(flat, &buffers.copies[from..][..placed.lanes]);
                    }
                }
            }
        },
    );
    out
}
