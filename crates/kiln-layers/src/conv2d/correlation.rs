//! Images correlated with kernels: the output of a convolution, and the gradient of its input.

use std::ops::Range;

use rayon::prelude::*;

use super::plan::{Class, Tap};
use super::portions::{Correlation, Lengths, Placed, Portions};
use super::settings::LANES;
use super::tile::{Factors, add_products};
use kiln_operations::cpu::buffers::{run_with_buffers, widened_buffers};
use kiln_operations::cpu::stored::Stored;

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

/// Buffers that a thread uses again.
pub(super) struct Buffers {
    pub(super) copies: Vec<f32>,
    pub(super) wide: Vec<f32>,
    sums: Vec<f32>,
    kept: Vec<f32>,
    offsets: Vec<usize>,
}

impl Buffers {
    /// Buffers for tasks on values of type `E`.
    pub(super) fn new<E: Stored>(lengths: Lengths) -> Self {
        let Lengths { copies, sums, offsets, wide } = lengths;
        let [[wide], [kept]] = wide.map(widened_buffers::<E, 1>);
        Self {
            copies: Vec::with_capacity(copies),
            wide,
            sums: Vec::with_capacity(sums),
            kept,
            offsets: Vec::with_capacity(offsets),
        }
    }
}

impl Correlation {
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
        let pass = |[down, right]: [&Class; 2]| {
            let taps: Vec<[Tap; 2]> =
                down.taps.iter().flat_map(|down| right.taps.iter().map(|right| [*down, *right])).collect();
            let places: Vec<usize> = taps.iter().map(|[down, right]| down.index * wide + right.index).collect();
            let terms = self.sources * taps.len();
            let mut weights = vec![0.0f32; self.weights(taps.len())];
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
        self.classes().map(pass).collect()
    }

    /// Computes the target images. Each value begins as the bias of its channel, or as 0.
    pub(super) fn run<E: Stored>(&self, values: &[E], kernels: Kernels<'_>, bias: &[f32]) -> Vec<E> {
        let channels = self.groups * self.targets;
        let mut target = vec![E::zeroed(); self.images * channels * self.image()];
        // Without a pass, all taps of the target lie in the padding.
        if target.is_empty() || self.classes().next().is_none() {
            return target;
        }
        let passes = self.passes(kernels);
        let portions = self.portions(passes.len());
        let Portions { images, channels: part, rows, sources, tasks: all } = portions;
        let lengths = self.lengths(passes.len(), &portions);
        let part_values = if part == channels { images * channels * self.image() } else { part * self.image() };
        let tasks = target.par_chunks_mut(images * channels * self.image()).enumerate();
        let tasks = tasks.flat_map(|(task, values)| {
            values
                .par_chunks_mut(part_values)
                .enumerate()
                .map(move |(index, values)| (task * images, index * part, values))
        });
        let run = |buffers: &mut Buffers, (image, channel, target): (usize, usize, &mut [E])| {
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
        };
        run_with_buffers(tasks, all, || Buffers::new::<E>(lengths), run);
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
