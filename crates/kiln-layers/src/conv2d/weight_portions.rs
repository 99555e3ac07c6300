//! How the gradient of a convolution's weight is divided into tasks, and the buffers of a task.

use std::ops::Range;

use super::Geometry;
use super::portions::{Correlation, Lengths, Sizes};
use super::settings::{CACHED, LANES, PARTS, PIXELS, ROWS, TASKS};

/// Columns of the weight's gradient that are neighbours in the pixels: those of a tap, or of a row of taps.
pub(super) struct Run {
    /// The distance from the first tap's pixel.
    pub(super) offset: usize,
    /// The first column of the sums.
    pub(super) column: usize,
    pub(super) lanes: usize,
    pub(super) tap: usize,
}

/// The tasks of a weight's gradient: each has some output channels, and some images.
pub(super) struct WeightPortions {
    pub(super) sizes: Sizes,
    pub(super) geometry: Geometry,
    pub(super) runs: Vec<Run>,
    /// Columns of the sums.
    pub(super) columns: usize,
    /// Number of input columns that a row of outputs reads.
    pub(super) width: usize,
    /// Groups of images, which have sums of their own. It does not depend on the number of threads.
    pub(super) image_groups: usize,
    /// Output channels of a task.
    pub(super) part: usize,
}

/// The most values that the buffers of a task have.
#[derive(Clone, Copy)]
pub(super) struct WeightLengths {
    /// Sums of the task, if it keeps them for itself.
    pub(super) sums: usize,
    /// Pixels of the input.
    pub(super) x: usize,
    /// Gradients of the same pixels.
    pub(super) gradient: usize,
    /// Places of the pixels.
    pub(super) offsets: usize,
    /// A row of the input or some rows of the gradient, in f32.
    pub(super) wide: usize,
}

impl WeightPortions {
    pub(super) fn new(sizes: Sizes, geometry: Geometry) -> Self {
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
        let channels = geometry.groups * sizes.outputs;
        let image_groups = (PARTS / (channels * columns).max(1)).clamp(1, TASKS);
        let whole = if geometry.groups == 1 { ROWS } else { sizes.outputs };
        let part = channels.div_ceil(TASKS.div_ceil(image_groups)).next_multiple_of(whole);
        Self { sizes, geometry, runs, columns, width, image_groups, part }
    }

    pub(super) fn channels(&self) -> usize {
        self.geometry.groups * self.sizes.outputs
    }

    /// Tasks with images.
    pub(super) fn tasks(&self) -> usize {
        let of_images = self.sizes.images.div_ceil(self.sizes.images.div_ceil(self.image_groups).max(1));
        self.channels().div_ceil(self.part) * of_images
    }

    /// Rows of a tile.
    pub(super) fn block(&self) -> usize {
        if self.sizes.outputs == 1 { 1 } else { ROWS }
    }

    /// The row of the sums of an output channel. Each group begins with a block.
    pub(super) fn row(&self, channel: usize) -> usize {
        let outputs = self.sizes.outputs;
        channel / outputs * outputs.next_multiple_of(self.block()) + channel % outputs
    }

    /// Values of the sums of so many output channels.
    pub(super) fn sums(&self, channels: usize) -> usize {
        (self.row(channels - 1) + 1).next_multiple_of(self.block()) * self.columns
    }

    /// The output channels of a task.
    pub(super) fn part(&self, index: usize) -> Range<usize> {
        index * self.part..((index + 1) * self.part).min(self.channels())
    }

    /// Number of input rows that `rows` rows of outputs read.
    pub(super) fn input_rows(&self, rows: usize) -> usize {
        (rows - 1) * self.geometry.stride[0] + self.geometry.extent(self.sizes.kernel)[0]
    }

    /// Number of images and of rows of outputs whose pixels are copied together, in a task of so many output channels of a group.
    pub(super) fn together(&self, channels: usize) -> [usize; 2] {
        let Sizes { inputs, output, .. } = self.sizes;
        let size = |rows| self.input_rows(rows) * self.width * inputs + rows * output[1] * channels;
        let image = size(output[0].max(1));
        if output[0] == 0 || image <= CACHED {
            // With whole groups of pixels, the sums are the same however many images are copied together.
            let whole = (1..=PIXELS).find(|images| images * output[0] * output[1] % PIXELS == 0).unwrap_or(PIXELS);
            let most =
                if whole * image <= 2 * CACHED { (CACHED / image / whole).max(1) * whole } else { CACHED / image };
            return [most.max(1), output[0].max(1)];
        }
        [1, (1..output[0]).rev().find(|rows| size(*rows) <= CACHED).unwrap_or(1)]
    }

    /// The buffers of a task. The last one may have fewer channels, and then more pixels.
    pub(super) fn lengths(&self) -> WeightLengths {
        let last = self.channels() - (self.channels() - 1) / self.part * self.part;
        let [first, last] = [self.part.min(self.channels()), last].map(|channels| self.lengths_of(channels));
        WeightLengths {
            sums: first.sums.max(last.sums),
            x: first.x.max(last.x),
            gradient: first.gradient.max(last.gradient),
            offsets: first.offsets.max(last.offsets),
            wide: first.wide.max(last.wide),
        }
    }

    fn lengths_of(&self, channels: usize) -> WeightLengths {
        let Sizes { images, inputs, outputs, input, output, .. } = self.sizes;
        let of_group = channels.min(outputs);
        let [at_a_time, rows] = self.together(of_group);
        let at_a_time = at_a_time.min(images.div_ceil(self.image_groups));
        let pixels = at_a_time * rows * output[1];
        WeightLengths {
            sums: if self.image_groups == 1 { self.sums(channels) } else { 0 },
            x: at_a_time * self.input_rows(rows) * self.width * inputs + LANES,
            gradient: of_group.next_multiple_of(self.block()) * pixels,
            offsets: pixels,
            wide: input[1].max(rows * output[1]),
        }
    }

    /// Values of the sums of all tasks that are kept until the last one ends.
    pub(super) fn kept(&self) -> usize {
        match self.image_groups {
            1 => 0,
            groups => self.channels().div_ceil(self.part) * groups * self.sums(self.part.min(self.channels())),
        }
    }
}

impl WeightLengths {
    /// Bytes of the buffers, for values of 16 bits or of f32.
    pub(super) fn bytes(&self, is_half: bool) -> usize {
        let Self { sums, x, gradient, offsets, wide } = self;
        size_of::<f32>() * (sums + x + gradient + if is_half { *wide } else { 0 }) + size_of::<usize>() * offsets
    }
}

/// The buffers of a task whose weight has one input channel in each group, and a plane of the gradient in the order of the copies.
pub(super) fn depthwise_lengths(correlation: &Correlation) -> (Lengths, usize) {
    let placed = correlation.placed(0..1, 0..correlation.height.target);
    let wide = correlation.width.source.max(correlation.width.target);
    (
        Lengths { copies: correlation.copies() * placed.plane + LANES, sums: 0, offsets: 0, wide: [wide, 0] },
        placed.lanes,
    )
}

/// Bytes of these buffers, for values of 16 bits or of f32.
pub(super) fn depthwise_bytes(correlation: &Correlation, is_half: bool) -> usize {
    let (lengths, lanes) = depthwise_lengths(correlation);
    lengths.bytes(is_half) + size_of::<f32>() * lanes
}
