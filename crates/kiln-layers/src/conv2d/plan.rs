//! The positions of a convolution's values along one side of an image, for the output and for the gradient of the input.
//!
//! Both are the same computation. Some lines (rows or columns) of the source are copied. Each line of a class of target lines is a sum
//! over taps: target line `first + step * i` of a class reads copied line `i + shift` of one of the copies, for each tap of the class.

use std::ops::Range;

/// A tap of the kernel in a class of target lines.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tap {
    /// Its index in the kernel.
    pub(super) index: usize,
    /// The copy that it reads.
    pub(super) copy: usize,
    /// The distance from the target's line to the line that it reads.
    pub(super) shift: usize,
}

/// Target lines that have the same taps.
#[derive(Clone, Debug)]
pub(super) struct Class {
    pub(super) first: usize,
    pub(super) count: usize,
    pub(super) taps: Vec<Tap>,
}

/// One side of the images.
#[derive(Clone, Debug)]
pub(super) struct Side {
    pub(super) source: usize,
    pub(super) target: usize,
    /// The distance in the source from a line of a copy to the next.
    pub(super) step: usize,
    /// For each copy: the line of the source at its line 0, which may lie in the padding.
    pub(super) starts: Vec<isize>,
    /// The distance from a target line of a class to the next.
    pub(super) target_step: usize,
    pub(super) classes: Vec<Class>,
    /// Number of target lines of the largest class.
    pub(super) count: usize,
    /// The largest shift.
    pub(super) reach: usize,
    /// Number of zeros at the end of a copy that are also those at the start of the next.
    pub(super) shared: usize,
}

/// The taps that share a copy of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Copies {
    /// All taps whose distances differ by a multiple of the step. Between the rows of a copy lie lines that have no meaning.
    Shared,
    /// No taps: each has a copy of its own, and the rows follow each other without a gap.
    EachTap,
}

/// Stride, dilation, leading zeros and kernel size along a side.
#[derive(Clone, Copy, Debug)]
pub(super) struct Movement {
    pub(super) stride: usize,
    pub(super) dilation: usize,
    pub(super) before: usize,
    pub(super) kernel: usize,
}

impl Movement {
    /// For each tap: its index, and remainder and quotient of its distance divided by the stride.
    fn taps(self) -> impl Iterator<Item = (usize, usize, usize)> {
        (0..self.kernel).map(move |tap| {
            let distance = tap * self.dilation;
            (tap, distance % self.stride, distance / self.stride)
        })
    }

    fn remainders(self) -> Vec<usize> {
        let mut all: Vec<usize> = self.taps().map(|(_, rest, _)| rest).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The output: one class of lines. The input is copied once for each remainder, or for each tap.
    pub(super) fn forward(self, input: usize, output: usize, copies: Copies) -> Side {
        let mut starts = vec![];
        let taps = self.taps().map(|(index, rest, shift)| {
            let start = rest as isize - self.before as isize;
            match copies {
                Copies::Shared => Tap { index, copy: place(&mut starts, start), shift },
                Copies::EachTap => {
                    Tap { index, copy: place(&mut starts, start + (shift * self.stride) as isize), shift: 0 }
                }
            }
        });
        let class = Class { first: 0, count: output, taps: taps.collect() };
        Side::new([input, output], (self.stride, starts), (1, vec![class]))
    }

    /// The gradient of the input: a class of lines for each remainder, from one copy of the output's gradient, or from one copy for each
    /// tap.
    pub(super) fn backward(self, input: usize, output: usize, copies: Copies) -> Side {
        // Line `first` of a class is line `quotient` of the padded input divided by the stride. A tap reads `quotient - shift` there.
        let lines: Vec<(usize, usize, usize)> = self
            .remainders()
            .into_iter()
            .map(|rest| {
                let quotient = self.before.saturating_sub(rest).div_ceil(self.stride);
                (rest, quotient, quotient * self.stride + rest - self.before)
            })
            .filter(|(_, _, first)| *first < input)
            .collect();
        let reads = |(rest, quotient, _): (usize, usize, usize)| {
            let taps = self.taps().filter(move |tap| tap.1 == rest);
            taps.map(move |(index, _, shift)| (index, quotient as isize - shift as isize))
        };
        let lowest = lines.iter().flat_map(|line| reads(*line)).map(|(_, read)| read).min().unwrap_or(0).min(0);
        let mut starts = vec![];
        let classes = lines.iter().map(|&line| {
            let taps = reads(line).map(|(index, read)| match copies {
                Copies::Shared => {
                    Tap { index, copy: place(&mut starts, lowest), shift: (read - lowest).unsigned_abs() }
                }
                Copies::EachTap => Tap { index, copy: place(&mut starts, read), shift: 0 },
            });
            Class { first: line.2, count: (input - line.2).div_ceil(self.stride), taps: taps.collect() }
        });
        let classes = classes.collect();
        Side::new([output, input], (1, starts), (self.stride, classes))
    }
}

/// The index of a start in `starts`. A new start is added.
fn place(starts: &mut Vec<isize>, start: isize) -> usize {
    starts.iter().position(|other| *other == start).unwrap_or_else(|| {
        starts.push(start);
        starts.len() - 1
    })
}

impl Side {
    fn new(
        [source, target]: [usize; 2],
        (step, starts): (usize, Vec<isize>),
        (target_step, classes): (usize, Vec<Class>),
    ) -> Self {
        let count = classes.iter().map(|class| class.count).max().unwrap_or(0);
        let shifts = classes.iter().flat_map(|class| &class.taps).map(|tap| tap.shift);
        let reach = shifts.max().unwrap_or(0);
        let mut side = Self { source, target, step, starts, target_step, classes, count, reach, shared: 0 };
        let length = count + reach;
        let zeros = (0..side.starts.len()).map(|copy| {
            let held = side.held(copy, 0..length);
            held.start.min(length - held.end)
        });
        side.shared = zeros.min().unwrap_or(0).min(reach);
        side
    }

    /// The range of the `lines` of a copy that hold values of the source. The others are zeros.
    pub(super) fn held(&self, copy: usize, lines: Range<usize>) -> Range<usize> {
        held(self.source, self.starts[copy], self.step, lines)
    }

    /// The line of the source at `line` of a copy, for a line that holds values.
    pub(super) fn source_line(&self, copy: usize, line: usize) -> usize {
        (line * self.step).saturating_add_signed(self.starts[copy])
    }

    /// Whether more than an eighth of the work is on lines that have no meaning.
    pub(super) fn wasteful(&self) -> bool {
        8 * (self.pitch() - self.count) > self.count
    }

    /// Number of lines from a copy to the next.
    pub(super) fn pitch(&self) -> usize {
        self.count + self.reach - self.shared
    }
}

/// The range of the `lines` of a copy that hold values of a source of `source` lines. Line 0 is line `start` of the source, and each line
/// is `step` further than the one before.
pub(super) fn held(source: usize, start: isize, step: usize, lines: Range<usize>) -> Range<usize> {
    let before = start.min(0).unsigned_abs().div_ceil(step);
    let past = source.saturating_add_signed(-start.min(source as isize)).div_ceil(step);
    let first = before.clamp(lines.start, lines.end);
    first..past.clamp(first, lines.end)
}
