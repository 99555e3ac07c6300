//! How images that are correlated with kernels are divided into tasks, and the buffers of a task.

use std::ops::Range;

use super::Geometry;
use super::plan::{Class, Copies, Movement, Side};
use super::settings::{CACHED, LANES, ROWS, TASKS, WIDTH};

/// Values that a tile reads of the channels whose products are summed together. They stay in the first-level cache.
const CACHED_FIRST: usize = 6 * 1024;
/// The number of targets from which rows without gaps justify more copies.
const TARGETS: usize = 16;

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

/// A correlation: its sizes, and the positions of the values.
pub(super) struct Correlation {
    pub(super) images: usize,
    pub(super) groups: usize,
    /// Channels of a group in the source.
    pub(super) sources: usize,
    /// Channels of a group in the target.
    pub(super) targets: usize,
    pub(super) height: Side,
    pub(super) width: Side,
}

/// The positions of the values of some images, or of some rows of one image, in the buffers of a task. Images and their rows follow each
/// other in one line of values. The zeros at the end of a row are also those at the start of the next.
pub(super) struct Placed {
    pub(super) images: Range<usize>,
    pub(super) rows: Range<usize>,
    /// Number of rows from an image to the next.
    pub(super) image_rows: usize,
    /// Number of values of a channel in one copy.
    pub(super) plane: usize,
    /// Number of target values of a channel, including the values between rows and images, which have no meaning.
    pub(super) lanes: usize,
}

/// The tasks of a correlation, and the part of a task that is computed together.
pub(super) struct Portions {
    /// Images of a task.
    pub(super) images: usize,
    /// Target channels of a task, of all groups.
    pub(super) channels: usize,
    /// Rows of a class that are computed together.
    pub(super) rows: usize,
    /// Source channels whose products are added to the sums of all targets.
    pub(super) sources: usize,
    /// Number of tasks.
    pub(super) tasks: usize,
}

/// The most values that the buffers of a task have.
#[derive(Clone, Copy)]
pub(super) struct Lengths {
    /// Copied source values.
    pub(super) copies: usize,
    /// Sums of the target.
    pub(super) sums: usize,
    /// Places of the values that are multiplied.
    pub(super) offsets: usize,
    /// A row of the source, and rows of the target, in f32.
    pub(super) wide: [usize; 2],
}

impl Sizes {
    /// The sizes for an input and a weight of these shapes.
    pub(super) fn new(x: [usize; 4], weight: [usize; 4], geometry: Geometry) -> Self {
        let ([images, _, height, width], [outputs, inputs, high, wide]) = (x, weight);
        let (input, kernel) = ([height, width], [high, wide]);
        Self {
            images,
            inputs,
            outputs: outputs / geometry.groups,
            input,
            output: geometry.output(input, kernel),
            kernel,
        }
    }

    fn movement(&self, geometry: Geometry, side: usize) -> Movement {
        Movement {
            stride: geometry.stride[side],
            dilation: geometry.dilation[side],
            before: geometry.before[side],
            kernel: self.kernel[side],
        }
    }

    /// The correlation of the input with the weight.
    pub(super) fn of_input(&self, geometry: Geometry) -> Correlation {
        let [height, width] = sides(self.outputs, |side, copies| {
            self.movement(geometry, side).forward(self.input[side], self.output[side], copies)
        });
        let (sources, targets) = (self.inputs, self.outputs);
        Correlation { images: self.images, groups: geometry.groups, sources, targets, height, width }
    }

    /// The correlation of the output's gradient with the weight.
    pub(super) fn of_gradient(&self, geometry: Geometry) -> Correlation {
        let [height, width] = sides(self.inputs, |side, copies| {
            self.movement(geometry, side).backward(self.input[side], self.output[side], copies)
        });
        let (sources, targets) = (self.outputs, self.inputs);
        Correlation { images: self.images, groups: geometry.groups, sources, targets, height, width }
    }
}

/// Height and width of a correlation with `targets` channels. For narrow images, each tap of a row gets its own copy.
fn sides(targets: usize, side: impl Fn(usize, Copies) -> Side) -> [Side; 2] {
    let width = side(1, Copies::Shared);
    let narrow = targets >= TARGETS && width.wasteful();
    [side(0, Copies::Shared), if narrow { side(1, Copies::EachTap) } else { width }]
}

impl Correlation {
    /// Number of copies of a source channel.
    pub(super) fn copies(&self) -> usize {
        self.height.starts.len() * self.width.starts.len()
    }

    /// Rows of a tile.
    pub(super) fn block(&self) -> usize {
        if self.targets == 1 { 1 } else { ROWS }
    }

    /// Pixels of a target image.
    pub(super) fn image(&self) -> usize {
        self.height.target * self.width.target
    }

    /// A class of rows and one of columns for each pass.
    pub(super) fn classes(&self) -> impl Iterator<Item = [&Class; 2]> {
        self.height.classes.iter().flat_map(|down| self.width.classes.iter().map(move |right| [down, right]))
    }

    /// The number of taps of each pass.
    pub(super) fn taps(&self) -> impl Iterator<Item = usize> {
        self.classes().map(|[down, right]| down.taps.len() * right.taps.len())
    }

    /// Values of the weights of a pass with so many taps: for each group and block of targets, `[terms, rows of the block]`.
    pub(super) fn weights(&self, taps: usize) -> usize {
        let blocks = self.targets.div_ceil(self.block());
        self.groups * blocks * self.sources * taps * self.block()
    }

    pub(super) fn placed(&self, images: Range<usize>, rows: Range<usize>) -> Placed {
        let (height, width) = (&self.height, &self.width);
        let image_rows = rows.len() + height.reach - height.shared;
        let all_rows = (images.len() - 1) * image_rows + rows.len();
        Placed {
            image_rows,
            plane: (all_rows + height.reach) * width.pitch() + width.shared,
            lanes: ((all_rows - 1) * width.pitch() + width.count).next_multiple_of(LANES),
            images,
            rows,
        }
    }

    /// Number of source channels whose products a tile adds together. The values that it reads of them stay in the first-level cache.
    pub(super) fn sources_of_a_tile(&self) -> usize {
        let of_channel = self.copies() * (WIDTH + self.height.reach * self.width.pitch() + self.width.reach);
        (CACHED_FIRST / of_channel).clamp(1, self.sources.max(1))
    }

    /// How a correlation of this many passes is divided. There must be images, targets and passes.
    pub(super) fn portions(&self, passes: usize) -> Portions {
        let (height, together, pitch) = (&self.height, self.sources_of_a_tile(), self.width.pitch());
        let copied = (together * self.copies() * pitch).max(1);
        let summed = (passes * self.targets.next_multiple_of(self.block()) * pitch).max(1);
        let rows_of_an_image = height.count + height.reach;
        let images = CACHED / (copied.max(summed) * rows_of_an_image);
        let (images, rows) = if images > 0 {
            (images.min(self.images.div_ceil(TASKS)).max(1), height.count)
        } else {
            let most = (CACHED / summed).min((CACHED / copied).saturating_sub(height.reach)).max(1);
            // The bands have about the same height.
            (1, height.count.div_ceil(height.count.div_ceil(most)))
        };
        let plane = self.copies() * self.placed(0..images, 0..rows).plane;
        let sources = (CACHED / (plane * together).max(1)).max(1) * together;
        // A batch of few images is divided along its channels as well.
        let parts = if images == 1 { TASKS.div_ceil(self.images) } else { 1 };
        let whole = if self.groups == 1 { self.block() } else { self.targets };
        let all = self.groups * self.targets;
        let channels = all.div_ceil(parts).next_multiple_of(whole).min(all);
        Portions { images, channels, rows, sources, tasks: self.images.div_ceil(images) * all.div_ceil(channels) }
    }

    /// The buffers of a task.
    pub(super) fn lengths(&self, passes: usize, portions: &Portions) -> Lengths {
        let (height, width) = (&self.height, &self.width);
        let placed = self.placed(0..portions.images, 0..portions.rows);
        let sources = portions.sources.min(self.sources);
        let targets = portions.channels.min(self.targets).next_multiple_of(self.block());
        let taps = self.taps().max().unwrap_or(0);
        let rows = (height.target_step * portions.rows).min(height.target);
        Lengths {
            copies: sources * self.copies() * placed.plane + LANES,
            sums: passes * targets * placed.lanes,
            offsets: sources * taps,
            wide: [width.source, rows * width.target],
        }
    }
}

impl Lengths {
    /// Bytes of the buffers, for values of 16 bits or of f32.
    pub(super) fn bytes(&self, is_half: bool) -> usize {
        let Self { copies, sums, offsets, wide } = self;
        let wide: usize = if is_half { wide.iter().sum() } else { 0 };
        size_of::<f32>() * (copies + sums + wide) + size_of::<usize>() * offsets
    }
}
