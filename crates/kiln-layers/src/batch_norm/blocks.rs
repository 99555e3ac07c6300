//! The division of a tensor `[samples, channels, values of a plane]` among tasks.

use std::ops::Range;

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use rayon::prelude::*;

use super::settings::{PIECE, RUN};

/// Values of a strip, the least work that is divided among threads within a block.
const STRIP: usize = 64 * 1024;
/// The most samples of a strip. f32 sums have no more terms than this for each value of a piece.
const SAMPLES: usize = 256;

/// Blocks of whole channels, which are the units of work. A block's values of one sample lie side by side and are taken in pieces. A
/// piece has either all planes of the block, or a part of the block's only plane.
pub(super) struct Blocks {
    pub(super) samples: usize,
    pub(super) channels: usize,
    pub(super) plane: usize,
    /// Channels of a block.
    size: usize,
}

impl Blocks {
    pub(super) fn of(x: &FlexTensor) -> Self {
        let shape = x.shape();
        let (samples, channels, plane) = (shape[0], shape[1], shape.iter().skip(2).product::<usize>());
        Self { samples, channels, plane, size: (RUN / plane.max(1)).clamp(1, channels.max(1)) }
    }

    /// Values of a channel.
    pub(super) fn count(&self) -> usize {
        self.samples * self.plane
    }

    pub(super) fn blocks(&self) -> usize {
        self.channels.div_ceil(self.size)
    }

    pub(super) fn channels(&self, block: usize) -> Range<usize> {
        block * self.size..((block + 1) * self.size).min(self.channels)
    }

    /// The range of a block's values in a sample.
    pub(super) fn values(&self, sample: usize, block: usize) -> Range<usize> {
        let (first, channels) = (sample * self.channels, self.channels(block));
        (first + channels.start) * self.plane..(first + channels.end) * self.plane
    }

    /// Values of a piece of a block.
    pub(super) fn width(&self, block: usize) -> usize {
        (self.channels(block).len() * self.plane).min(if self.size > 1 { RUN } else { PIECE })
    }

    /// Repeats one value of each channel, so that each value of a piece has its own.
    pub(super) fn lanes(&self, block: usize, of_channel: impl Iterator<Item = f32>) -> Vec<f32> {
        let repeated = self.width(block) / self.channels(block).len();
        of_channel.flat_map(|value| std::iter::repeat_n(value, repeated)).collect()
    }

    /// The sum of each channel, from sums for each value of a piece.
    fn totals(&self, block: usize, lanes: &[f32]) -> impl Iterator<Item = f64> {
        let repeated = self.width(block) / self.channels(block).len();
        lanes.chunks_exact(repeated).map(|lanes| lanes.iter().map(|value| f64::from(*value)).sum())
    }

    /// The ranges of the pieces of a block's values in a sample.
    pub(super) fn pieces(&self, sample: usize, block: usize) -> impl Iterator<Item = Range<usize>> {
        let (all, width) = (self.values(sample, block), self.width(block));
        all.clone().step_by(width).map(move |first| first..(first + width).min(all.end))
    }

    /// Two sums over the values of each channel of a block. `add` adds the values of a strip to two partial sums for each value of a
    /// piece.
    pub(super) fn sums<I: IndexedParallelIterator>(
        &self,
        block: usize,
        strips: I,
        add: impl Fn(I::Item, [&mut [f32]; 2]) + Sync,
    ) -> Vec<[f64; 2]> {
        let partial: Vec<Vec<[f64; 2]>> = strips
            .map(|strip| {
                let mut sums = [(); 2].map(|()| vec![0.0f32; self.width(block)]);
                add(strip, sums.each_mut().map(Vec::as_mut_slice));
                let [first, second] = sums.each_ref().map(|lanes| self.totals(block, lanes));
                first.zip(second).map(|(first, second)| [first, second]).collect()
            })
            .collect();
        let mut sums = vec![[0.0f64; 2]; self.channels(block).len()];
        for partial in &partial {
            sums.iter_mut().zip(partial).for_each(|(sum, part)| *sum = [sum[0] + part[0], sum[1] + part[1]]);
        }
        sums
    }

    /// Samples of a strip. Strips do not depend on the number of threads.
    pub(super) fn strip(&self) -> usize {
        (STRIP / (self.size * self.plane).max(1)).clamp(1, SAMPLES)
    }

    /// The values of each block in each sample.
    pub(super) fn split<'a, E>(&self, values: &'a mut [E]) -> Vec<Vec<&'a mut [E]>> {
        let mut columns: Vec<_> = (0..self.blocks()).map(|_| Vec::with_capacity(self.samples)).collect();
        for sample in values.chunks_mut((self.channels * self.plane).max(1)) {
            let parts = sample.chunks_mut((self.size * self.plane).max(1));
            columns.iter_mut().zip(parts).for_each(|(column, part)| column.push(part));
        }
        columns
    }
}
