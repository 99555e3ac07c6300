//! Images correlated with kernels: the output of a convolution, and the gradient of its input.

use std::ops::Range;

use rayon::prelude::*;

use super::plan::{Class, Side, Tap};
use super::settings::{CACHED, TASKS};
use super::tile::{Factors, LANES, ROWS, WIDTH, add_products};
use kiln_operations::cpu::stored::Stored;

/// Values that a tile reads of the channels whose products are summed together. They stay in the first-level cache.
const CACHED_FIRST: usize = 6 * 1024;

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

/// The kernels of a weight, and their distances in memory.
#[derive(Clone, Copy)]
pub(super) struct Kernels<'a> {
    pub(super) values: &'a [f32],
    /// Height and width.
    pub(super) size: [usize; 2],
    /// The distances from one group, target channel and source channel to the next.
    pub(super) distances: [usize; 3],
}

/// Target pixels that have the same taps.
struct Pass {
    /// First row and column.
    first: [usize; 2],
    /// Rows and columns.
    count: [usize; 2],
    taps: Vec<[Tap; 2]>,
    /// For each group and block of targets: `[terms, rows of the block]`. A term is a tap of a source channel.
    weights: Vec<f32>,
}

/// The positions of the values of some images, or of some rows of one image, in the buffers of a task. Images and their rows follow each
/// other in one line of values. The zeros at the end of a row are also those at the start of the next.
pub(super) struct Placed {
    images: Range<usize>,
    rows: Range<usize>,
    /// Number of rows from an image to the next.
    image_rows: usize,
    /// Number of values of a channel in one copy.
    pub(super) plane: usize,
    /// Number of target values of a channel, including the values between rows and images, which have no meaning.
    pub(super) lanes: usize,
}

/// The part of a task that is computed together.
struct Portions {
    images: usize,
    /// Rows of a class.
    rows: usize,
    /// Source channels whose products are added to the sums of all targets.
    sources: usize,
}

/// Buffers that a thread uses again.
#[derive(Default)]
pub(super) struct Buffers {
    pub(super) copies: Vec<f32>,
    pub(super) wide: Vec<f32>,
    sums: Vec<f32>,
    kept: Vec<f32>,
    offsets: Vec<usize>,
}

impl Correlation {
    /// Number of copies of a source channel.
    fn copies(&self) -> usize {
        self.height.starts.len() * self.width.starts.len()
    }

    /// Rows of a tile.
    fn block(&self) -> usize {
        if self.targets == 1 { 1 } else { ROWS }
    }

    fn image(&self) -> usize {
        self.height.target * self.width.target
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

    /// The index in a buffer of copies at which tap `taps` of a source channel begins.
    pub(super) fn offset(&self, placed: &Placed, source: usize, [down, right]: [Tap; 2]) -> usize {
        let copy = (source * self.height.starts.len() + down.copy) * self.width.starts.len() + right.copy;
        copy * placed.plane + down.shift * self.width.pitch() + right.shift
    }

    /// Copies some source channels of a group.
    pub(super) fn copy<E: Stored>(
        &self,
        values: &[E],
        group: usize,
        sources: Range<usize>,
        placed: &Placed,
        Buffers { copies, wide, .. }: &mut Buffers,
    ) {
        let (height, width) = (&self.height, &self.width);
        copies.clear();
        copies.resize(sources.len() * self.copies() * placed.plane + LANES, 0.0);
        let mut planes = copies.chunks_exact_mut(placed.plane);
        for source in sources {
            for down in 0..height.starts.len() {
                let lines = height.held(down, placed.rows.start..placed.rows.end + height.reach);
                for (right, plane) in (0..width.starts.len()).zip(&mut planes) {
                    let columns = width.held(right, 0..width.count + width.reach);
                    if columns.is_empty() {
                        continue;
                    }
                    let from = width.source_line(right, columns.start);
                    for (index, image) in placed.images.clone().enumerate() {
                        let channel = (image * self.groups + group) * self.sources + source;
                        for line in lines.clone() {
                            let row = channel * height.source + height.source_line(down, line);
                            let row = &values[row * width.source..][..width.source];
                            let row = &E::widened(row, wide)[from..];
                            let at = (index * placed.image_rows + line - placed.rows.start) * width.pitch();
                            let plane = &mut plane[at..][columns.clone()];
                            match width.step {
                                1 => plane.copy_from_slice(&row[..plane.len()]),
                                step => plane.iter_mut().zip(row.iter().step_by(step)).for_each(|(to, x)| *to = *x),
                            }
                        }
                    }
                }
            }
        }
    }

    fn passes(&self, kernels: Kernels<'_>) -> Vec<Pass> {
        let Kernels { values, size: [high, wide], distances } = kernels;
        let block = self.block();
        let blocks = self.targets.div_ceil(block);
        let classes =
            self.height.classes.iter().flat_map(|down| self.width.classes.iter().map(move |right| (down, right)));
        let pass = |(down, right): (&Class, &Class)| {
            let taps: Vec<[Tap; 2]> =
                down.taps.iter().flat_map(|down| right.taps.iter().map(|right| [*down, *right])).collect();
            let places: Vec<usize> = taps.iter().map(|[down, right]| down.index * wide + right.index).collect();
            let terms = self.sources * taps.len();
            let mut weights = vec![0.0f32; self.groups * blocks * terms * block];
            if !weights.is_empty() {
                weights.par_chunks_exact_mut(terms * block).enumerate().for_each(|(index, weights)| {
                    let (group, target) = (index / blocks, index % blocks * block);
                    let rows = block.min(self.targets - target);
                    for (source, factors) in weights.chunks_exact_mut(places.len() * block).enumerate() {
                        for row in 0..rows {
                            let at = [group, target + row, source];
                            let first: usize = at.iter().zip(distances).map(|(index, distance)| index * distance).sum();
                            let kernel = &values[first..first + high * wide];
                            let factors = factors[row..].iter_mut().step_by(block);
                            factors.zip(&places).for_each(|(to, place)| *to = kernel[*place]);
                        }
                    }
                });
            }
            Pass { first: [down.first, right.first], count: [down.count, right.count], taps, weights }
        };
        classes.map(pass).collect()
    }

    /// Number of source channels whose products a tile adds together. The values that it reads of them stay in the first-level cache.
    fn sources_of_a_tile(&self) -> usize {
        let of_channel = self.copies() * (WIDTH + self.height.reach * self.width.pitch() + self.width.reach);
        (CACHED_FIRST / of_channel).clamp(1, self.sources.max(1))
    }

    fn portions(&self, passes: usize) -> Portions {
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
        Portions { images, rows, sources: (CACHED / (plane * together).max(1)).max(1) * together }
    }

    /// Computes the target images. Each value begins as the bias of its channel, or as 0.
    pub(super) fn run<E: Stored>(&self, values: &[E], kernels: Kernels<'_>, bias: &[f32]) -> Vec<E> {
        let channels = self.groups * self.targets;
        let mut target = vec![E::zeroed(); self.images * channels * self.image()];
        let passes = self.passes(kernels);
        // Without a pass, all taps of the target lie in the padding.
        if target.is_empty() || passes.is_empty() {
            return target;
        }
        let Portions { images, rows, sources } = self.portions(passes.len());
        // A batch of few images is divided along its channels as well.
        let parts = if images == 1 { TASKS.div_ceil(self.images) } else { 1 };
        let whole = if self.groups == 1 { self.block() } else { self.targets };
        let part = channels.div_ceil(parts).next_multiple_of(whole).min(channels);
        let part_values = if part == channels { images * channels * self.image() } else { part * self.image() };
        let tasks = target.par_chunks_mut(images * channels * self.image()).enumerate();
        let tasks = tasks.flat_map(|(task, values)| {
            values
                .par_chunks_mut(part_values)
                .enumerate()
                .map(move |(index, values)| (task * images, index * part, values))
        });
        tasks.for_each_init(Buffers::default, |buffers, (image, channel, target)| {
            let count = (target.len() / (part * self.image())).max(1);
            let channels = channel..(channel + part).min(channels);
            let bands = (0..self.height.count).step_by(rows);
            for rows in bands.map(|row| row..(row + rows).min(self.height.count)) {
                let placed = self.placed(image..image + count, rows);
                for group in channels.start / self.targets..channels.end.div_ceil(self.targets) {
                    let first = group * self.targets;
                    let targets = channels.start.max(first) - first..channels.end.min(first + self.targets) - first;
                    self.start(passes.len(), group, targets.clone(), bias, &placed, buffers);
                    for source in (0..self.sources).step_by(sources) {
                        let sources = source..(source + sources).min(self.sources);
                        self.copy(values, group, sources.clone(), &placed, buffers);
                        self.add(&passes, group, targets.clone(), sources, &placed, buffers);
                    }
                    self.store(
                        &passes,
                        first + targets.start - channels.start,
                        &placed,
                        target,
                        (channels.len(), targets.len()),
                        buffers,
                    );
                }
            }
        });
        target
    }

    /// Sets the sums of `targets` of a group to the bias, in all passes.
    fn start(
        &self,
        passes: usize,
        group: usize,
        targets: Range<usize>,
        bias: &[f32],
        placed: &Placed,
        Buffers { sums, .. }: &mut Buffers,
    ) {
        let rows = targets.len().next_multiple_of(self.block());
        sums.clear();
        sums.reserve_exact(passes * rows * placed.lanes);
        for _ in 0..passes {
            for row in 0..rows {
                let bias = bias.get(group * self.targets + targets.start + row).copied().unwrap_or(0.0);
                sums.resize(sums.len() + placed.lanes, bias);
            }
        }
    }

    /// Adds the products of the copied `sources` of a group to its `targets`, in all passes.
    fn add(
        &self,
        passes: &[Pass],
        group: usize,
        targets: Range<usize>,
        sources: Range<usize>,
        placed: &Placed,
        Buffers { copies, sums, offsets, .. }: &mut Buffers,
    ) {
        let (block, lanes) = (self.block(), placed.lanes);
        let rows = targets.len().next_multiple_of(block);
        let together = self.sources_of_a_tile();
        for (pass, sums) in passes.iter().zip(sums.chunks_exact_mut(rows * lanes)) {
            offsets.clear();
            for source in 0..sources.len() {
                offsets.extend(pass.taps.iter().map(|taps| self.offset(placed, source, *taps)));
            }
            let terms = self.sources * pass.taps.len();
            let first = (group * self.targets.next_multiple_of(block) + targets.start) * terms;
            let values = &pass.weights[first..];
            let factors = Factors { values, block, terms, first: sources.start * pass.taps.len() };
            add_products((sums, lanes, lanes), factors, copies, offsets, together * pass.taps.len());
        }
    }

    /// Stores the sums of `targets` channels, from channel `first` of a task's `channels`.
    fn store<E: Stored>(
        &self,
        passes: &[Pass],
        first: usize,
        placed: &Placed,
        target: &mut [E],
        (channels, targets): (usize, usize),
        Buffers { sums, kept, .. }: &mut Buffers,
    ) {
        let (height, width) = (&self.height, &self.width);
        let (down, right) = (height.target_step, width.target_step);
        let rows = down * placed.rows.start..(down * placed.rows.end).min(height.target);
        let covered = passes.len() == down.min(height.target) * right.min(width.target);
        let padded = targets.next_multiple_of(self.block());
        for index in 0..placed.images.len() {
            for channel in 0..targets {
                let plane = &mut target[(index * channels + first + channel) * self.image()..][..self.image()];
                E::written(&mut plane[rows.start * width.target..rows.end * width.target], kept, |out| {
                    if !covered {
                        out.fill(0.0);
                    }
                    for (pass, sums) in passes.iter().zip(sums.chunks_exact(padded * placed.lanes)) {
                        let sums = &sums[channel * placed.lanes..][..placed.lanes];
                        let lines = placed.rows.start..placed.rows.end.min(pass.count[0]);
                        for line in 0..lines.len() {
                            let from = (index * placed.image_rows + line) * width.pitch();
                            let sums = &sums[from..][..pass.count[1]];
                            let to = (pass.first[0] + down * line) * width.target + pass.first[1];
                            match right {
                                1 => out[to..][..sums.len()].copy_from_slice(sums),
                                _ => out[to..].iter_mut().step_by(right).zip(sums).for_each(|(to, sum)| *to = *sum),
                            }
                        }
                    }
                });
            }
        }
    }
}
