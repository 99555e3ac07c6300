//! The gradient of a convolution's weight.

use std::ops::Range;

use rayon::prelude::*;

use super::Geometry;
use super::correlation::{Buffers, Correlation};
use super::plan::{Side, Tap, held};
use super::settings::{CACHED, PARTS, TASKS};
use super::tile::{Factors, LANES, ROWS, add_products};
use kiln_operations::cpu::stored::{Stored, group};
use kiln_operations::simd;
use kiln_operations::simd::pair_sums;

/// Pixels whose products are summed together. The values that a tile reads of them stay in the first-level cache.
const PIXELS: usize = 64;

simd! { fn product(left: &[f32], right: &[f32]) -> f32 {
    pair_sums(left, right, |left, right| [left * right, 0.0])[0]
}}

/// The sizes of a convolution.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub(super) images: usize,
    /// Input channels of a group.
    pub(super) inputs: usize,
    /// Output channels of a group.
    pub(super) outputs: usize,
    /// Height and width of the input.
    pub(super) input: [usize; 2],
    /// Height and width of the output.
    pub(super) output: [usize; 2],
    pub(super) kernel: [usize; 2],
}

/// Columns of the weight's gradient that are neighbours in the pixels: those of a tap, or of a row of taps.
struct Run {
    /// The distance from the first tap's pixel.
    offset: usize,
    /// The first column of the sums.
    column: usize,
    lanes: usize,
    tap: usize,
}

/// A part of the work: the output channels of a task, with input and gradient in their memory layout.
struct Job<'a, E> {
    sizes: &'a Sizes,
    geometry: Geometry,
    x: &'a [E],
    gradient: &'a [E],
    runs: Vec<Run>,
    /// Columns of the sums.
    columns: usize,
    /// Number of input columns that a row of outputs reads.
    width: usize,
}

/// Buffers that a task uses again.
#[derive(Default)]
struct Pixels {
    /// Pixel by pixel, the input's channels of a group.
    x: Vec<f32>,
    /// For each block of output channels: pixel by pixel, the gradients of the block.
    gradient: Vec<f32>,
    offsets: Vec<usize>,
    wide: Vec<f32>,
}

/// The gradient of the weight, `[groups * outputs, inputs, kernel height, kernel width]`.
pub(super) fn weight_gradient<E: Stored>(sizes: &Sizes, geometry: Geometry, x: &[E], gradient: &[E]) -> Vec<f32> {
    let taps = sizes.kernel[0] * sizes.kernel[1];
    let (channels, row) = (geometry.groups * sizes.outputs, sizes.inputs * taps);
    let job = Job::new(sizes, geometry, x, gradient);
    // Groups of images have sums of their own, and tasks have some of the output channels. Neither depends on the number of threads.
    let image_groups = (PARTS / (channels * job.columns).max(1)).clamp(1, TASKS);
    let whole = if geometry.groups == 1 { ROWS } else { sizes.outputs };
    let part = channels.div_ceil(TASKS.div_ceil(image_groups)).next_multiple_of(whole);
    let mut out = vec![0.0f32; channels * row];
    // The sums of a part exist until they are added to the result.
    out.par_chunks_mut(part * row).enumerate().for_each(|(index, out)| {
        let first = index * part;
        let channels = first..(first + part).min(channels);
        let sums: Vec<Vec<f32>> = (0..image_groups)
            .into_par_iter()
            .map(|images| job.run(group(images, sizes.images, image_groups), channels.clone()))
            .collect();
        out.par_chunks_mut(row).enumerate().for_each(|(channel, out)| {
            for sums in &sums {
                let sums = &sums[job.row(channel) * job.columns..][..job.columns];
                for run in &job.runs {
                    for (tap, sums) in sums[run.column..][..run.lanes].chunks_exact(sizes.inputs).enumerate() {
                        let out = out[run.tap + tap..].iter_mut().step_by(taps);
                        out.zip(sums).for_each(|(out, sum)| *out += sum);
                    }
                }
            }
        });
    });
    out
}

impl<'a, E: Stored> Job<'a, E> {
    fn new(sizes: &'a Sizes, geometry: Geometry, x: &'a [E], gradient: &'a [E]) -> Self {
        let [down, right] = geometry.dilation;
        let width = (sizes.output[1].max(1) - 1) * geometry.stride[1] + geometry.extent(sizes.kernel)[1];
        // Neighbouring taps of neighbouring pixels are one run.
        let together = if right == 1 { sizes.kernel[1] } else { 1 };
        let lanes = together * sizes.inputs;
        let runs = (0..sizes.kernel[0] * sizes.kernel[1]).step_by(together).enumerate().map(|(index, tap)| Run {
            offset: (tap / sizes.kernel[1] * down * width + tap % sizes.kernel[1] * right) * sizes.inputs,
            column: index * lanes.next_multiple_of(LANES),
            lanes,
            tap,
        });
        let runs: Vec<Run> = runs.collect();
        let columns = runs.len() * lanes.next_multiple_of(LANES);
        Self { sizes, geometry, x, gradient, runs, columns, width }
    }

    /// Rows of a tile.
    fn block(&self) -> usize {
        if self.sizes.outputs == 1 { 1 } else { ROWS }
    }

    /// The row of the sums of an output channel. Each group begins with a block.
    fn row(&self, channel: usize) -> usize {
        let outputs = self.sizes.outputs;
        channel / outputs * outputs.next_multiple_of(self.block()) + channel % outputs
    }

    /// Number of input rows that `rows` rows of outputs read.
    fn input_rows(&self, rows: usize) -> usize {
        (rows - 1) * self.geometry.stride[0] + self.geometry.extent(self.sizes.kernel)[0]
    }

    /// The sums over some images, for some output channels.
    fn run(&self, images: Range<usize>, channels: Range<usize>) -> Vec<f32> {
        let Sizes { outputs, output, .. } = *self.sizes;
        let mut sums = vec![0.0f32; (self.row(channels.len() - 1) + 1).next_multiple_of(self.block()) * self.columns];
        let (at_a_time, rows) = self.portions(channels.len().min(outputs));
        let mut pixels = Pixels::default();
        for group in channels.start / outputs..channels.end.div_ceil(outputs) {
            let first = channels.start.max(group * outputs);
            let part = first..channels.end.min((group + 1) * outputs);
            let sums = &mut sums[self.row(first - channels.start) * self.columns..];
            let sums = &mut sums[..part.len().next_multiple_of(self.block()) * self.columns];
            for image in images.clone().step_by(at_a_time) {
                let images = image..(image + at_a_time).min(images.end);
                for row in (0..output[0]).step_by(rows) {
                    let rows = row..(row + rows).min(output[0]);
                    self.copy_input(images.clone(), group, rows.clone(), &mut pixels);
                    self.copy_gradient(images.clone(), part.clone(), rows, &mut pixels);
                    let Pixels { x, gradient, offsets, .. } = &pixels;
                    for run in &self.runs {
                        let lanes = run.lanes.next_multiple_of(LANES);
                        let out = (&mut sums[run.column..], self.columns, lanes);
                        let factors = Factors { values: gradient, block: self.block(), terms: offsets.len(), first: 0 };
                        add_products(out, factors, &x[run.offset..], offsets, PIXELS);
                    }
                }
            }
        }
        sums
    }

    /// Number of images and of rows of outputs whose pixels are copied together.
    fn portions(&self, channels: usize) -> (usize, usize) {
        let Sizes { inputs, output, .. } = *self.sizes;
        let size = |rows| self.input_rows(rows) * self.width * inputs + rows * output[1] * channels;
        let image = size(output[0].max(1));
        if output[0] == 0 || image <= CACHED {
            // With whole groups of pixels, the sums are the same however many images are copied together.
            let whole = (1..=PIXELS).find(|images| images * output[0] * output[1] % PIXELS == 0).unwrap_or(PIXELS);
            let most =
                if whole * image <= 2 * CACHED { (CACHED / image / whole).max(1) * whole } else { CACHED / image };
            return (most.max(1), output[0].max(1));
        }
        (1, (1..output[0]).rev().find(|rows| size(*rows) <= CACHED).unwrap_or(1))
    }

    /// Copies the values of a group's input that some rows of outputs read, and notes where each output pixel begins in the copy.
    fn copy_input(&self, images: Range<usize>, group: usize, rows: Range<usize>, pixels: &mut Pixels) {
        let Pixels { x, offsets, wide, .. } = pixels;
        let Sizes { inputs, input: [height, width], output, .. } = *self.sizes;
        let ([down, right], [top, left]) = (self.geometry.stride, self.geometry.before);
        let image_rows = self.input_rows(rows.len());
        x.clear();
        x.resize(images.len() * image_rows * self.width * inputs + LANES, 0.0);
        offsets.clear();
        let start = (down * rows.start) as isize - top as isize;
        let columns = held(width, -(left as isize), 1, 0..self.width);
        for (index, image) in images.enumerate() {
            for line in held(height, start, 1, 0..image_rows) {
                let at = (index * image_rows + line) * self.width;
                let to = &mut x[(at + columns.start) * inputs..(at + columns.end) * inputs];
                for channel in 0..inputs {
                    let plane = (image * self.geometry.groups + group) * inputs + channel;
                    let row = plane * height + line.saturating_add_signed(start);
                    let row = E::widened(&self.x[row * width..][..width], wide);
                    let row = &row[columns.start.saturating_sub(left)..];
                    to.chunks_exact_mut(inputs).zip(row).for_each(|(pixel, value)| pixel[channel] = *value);
                }
            }
            for row in 0..rows.len() {
                let at = (index * image_rows + row * down) * self.width;
                offsets.extend((0..output[1]).map(|column| (at + column * right) * inputs));
            }
        }
    }

    /// Copies the gradients of some output channels.
    fn copy_gradient(&self, images: Range<usize>, channels: Range<usize>, rows: Range<usize>, pixels: &mut Pixels) {
        let Pixels { gradient, wide, .. } = pixels;
        let (Sizes { outputs, output: [height, width], .. }, block) = (*self.sizes, self.block());
        let each = rows.len() * width;
        let all = images.len() * each;
        gradient.clear();
        gradient.resize(channels.len().next_multiple_of(block) * all, 0.0);
        for (index, image) in images.enumerate() {
            for (row, channel) in channels.clone().enumerate() {
                let plane = image * self.geometry.groups * outputs + channel;
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
    out.par_chunks_mut(outputs * taps).enumerate().for_each_init(
        || (Buffers::default(), vec![]),
        |(buffers, flat), (group, out)| {
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
