//! Plans: which blocks of a chain are recomputed together, and which keep their activations.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::Error;

/// The mode of a segment of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Keeps its activations.
    Plain,
    /// Keeps its input, and runs again in the backward pass.
    Recompute,
    /// Keeps its input in host memory, and runs again in the backward pass. On the CPU device this is [`Recompute`](Self::Recompute).
    Offload,
    /// Keeps its input in a store, and runs again in the backward pass. Its parameters are read from the store for each of the two passes, and
    /// their gradients are added to sums there: see [`Streamed`](crate::Streamed).
    Stream,
}

/// Consecutive blocks that are run in one mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanSegment {
    /// The blocks, counted from zero.
    pub blocks: Range<usize>,
    /// Their mode.
    pub mode: Mode,
}

/// A plan for the blocks of a chain: segments that follow each other without a gap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<PlanSegment>", into = "Vec<PlanSegment>")]
pub struct Plan {
    segments: Vec<PlanSegment>,
}

impl TryFrom<Vec<PlanSegment>> for Plan {
    type Error = Error;

    /// A plan of given segments: each begins where the one before it ends, the first at 0, and holds at least one block.
    fn try_from(segments: Vec<PlanSegment>) -> Result<Self, Error> {
        let mut begins = 0;
        for (index, PlanSegment { blocks, .. }) in segments.iter().enumerate() {
            if blocks.start != begins || blocks.is_empty() {
                return Err(Error::InvalidPlan { index, from: blocks.start, to: blocks.end, begins });
            }
            begins = blocks.end;
        }
        Ok(Self::new(segments))
    }
}

impl From<Plan> for Vec<PlanSegment> {
    fn from(plan: Plan) -> Self {
        plan.segments
    }
}

impl Plan {
    /// A plan in which every block keeps its activations.
    pub fn none(blocks: usize) -> Self {
        Self::new((blocks > 0).then_some(PlanSegment { blocks: 0..blocks, mode: Mode::Plain }))
    }

    /// Segments of `length` blocks; the last may be shorter. All are recomputed except the last, which is plain: the backward
    /// pass begins with it, so recomputing it would save nothing (torch's `checkpoint_sequential` does the same).
    ///
    /// # Errors
    /// [`Error::EmptySegment`] when `length` is 0.
    pub fn every(blocks: usize, length: usize) -> Result<Self, Error> {
        Self::uniform(blocks, length, Mode::Recompute)
    }

    /// Segments of `length` blocks as [`every`](Self::every) makes them, with their inputs in host memory. They are there anyway on the CPU
    /// device.
    ///
    /// # Errors
    /// [`Error::EmptySegment`] when `length` is 0.
    pub fn offload(blocks: usize, length: usize) -> Result<Self, Error> {
        Self::uniform(blocks, length, Mode::Offload)
    }

    /// Segments of `length` blocks, all of them streamed; the last may be shorter.
    ///
    /// # Errors
    /// [`Error::EmptySegment`] when `length` is 0.
    pub fn stream(blocks: usize, length: usize) -> Result<Self, Error> {
        if length == 0 {
            return Err(Error::EmptySegment);
        }
        let segment = |from| PlanSegment { blocks: from..blocks.min(from + length), mode: Mode::Stream };
        Ok(Self::new((0..blocks).step_by(length).map(segment)))
    }

    /// Segments of the length that needs the least memory when all blocks are alike: sqrt(n a / s) for n blocks with an
    /// input of a bytes (`input`) and activations of s bytes (`saved`). This length k balances the inputs of all segments,
    /// a n / k bytes, with the activations of the segment that is recomputed, k s bytes. (Chen et al. 2016 take a = s, hence
    /// "sqrt(n)".)
    pub fn sqrt(blocks: usize, input: u64, saved: u64) -> Self {
        let length = (blocks as f64 * input as f64 / saved.max(1) as f64).sqrt().round();
        Self::segmented(blocks, (length as usize).clamp(1, blocks.max(1)), Mode::Recompute)
    }

    fn uniform(blocks: usize, length: usize, mode: Mode) -> Result<Self, Error> {
        if length == 0 {
            return Err(Error::EmptySegment);
        }
        Ok(Self::segmented(blocks, length, mode))
    }

    fn segmented(blocks: usize, length: usize, mode: Mode) -> Self {
        let segment = |from| {
            let to = blocks.min(from + length);
            PlanSegment { blocks: from..to, mode: if to == blocks { Mode::Plain } else { mode } }
        };
        Self::new((0..blocks).step_by(length).map(segment))
    }

    /// `segments` in their order; neighbours that are plain become one.
    pub(crate) fn new(segments: impl IntoIterator<Item = PlanSegment>) -> Self {
        let mut joined: Vec<PlanSegment> = vec![];
        for segment in segments {
            match joined.last_mut() {
                Some(last) if last.mode == Mode::Plain && segment.mode == Mode::Plain => {
                    last.blocks.end = segment.blocks.end;
                }
                _ => joined.push(segment),
            }
        }
        Self { segments: joined }
    }

    /// The segments, first to last.
    pub fn segments(&self) -> &[PlanSegment] {
        &self.segments
    }

    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.segments.last().map_or(0, |last| last.blocks.end)
    }

    /// Blocks that run twice.
    pub fn recomputed(&self) -> usize {
        self.segments.iter().filter(|segment| segment.mode != Mode::Plain).map(|segment| segment.blocks.len()).sum()
    }

    /// Blocks that are streamed.
    pub fn streamed(&self) -> usize {
        let streamed = self.segments.iter().filter(|segment| segment.mode == Mode::Stream);
        streamed.map(|segment| segment.blocks.len()).sum()
    }

    /// Whether any block is streamed.
    pub fn streams(&self) -> bool {
        self.streamed() > 0
    }

    /// Plans that keep less than this one, each less than the one before: segments of about sqrt(n) of n blocks, then segments
    /// of one. Inputs stay in host memory if this plan moves any there, and streamed segments stay as they are. Empty when nothing keeps less.
    ///
    /// ```
    /// use kiln_checkpointing::Plan;
    ///
    /// let texts: Vec<String> = Plan::none(16).stronger().iter().map(Plan::to_string).collect();
    /// assert_eq!(texts, ["every:4", "every:1"]);
    /// assert!(Plan::every(16, 1)?.stronger().is_empty());
    /// # Ok::<(), kiln_checkpointing::Error>(())
    /// ```
    pub fn stronger(&self) -> Vec<Self> {
        let blocks = self.blocks();
        let offloads = self.segments().iter().any(|segment| segment.mode == Mode::Offload);
        let uniform = if offloads { Self::offload } else { Self::every };
        let middle = ((blocks as f64).sqrt().round() as usize).max(1);
        let mut plans: Vec<Self> = vec![];
        for plan in [middle, 1].into_iter().filter_map(|length| uniform(blocks, length).ok()) {
            let plan = self.streams_in(plan);
            if keeps_less(&plan, plans.last().unwrap_or(self)) {
                plans.push(plan);
            }
        }
        plans
    }

    /// The plan that keeps the input of every block in host memory, except of those that this plan streams.
    pub fn offloaded(&self) -> Self {
        self.streams_in(Self::segmented(self.blocks(), 1, Mode::Offload))
    }

    /// This plan with one block streamed as a segment of its own.
    pub fn with_streamed(&self, block: usize) -> Self {
        let blocks = block..self.blocks().min(block + 1);
        let mut alone = Self::none(0);
        alone.segments.extend((!blocks.is_empty()).then_some(PlanSegment { blocks, mode: Mode::Stream }));
        alone.streams_in(self.clone())
    }

    /// `other` with the streamed segments of this plan: parameters that are in a store stay there.
    fn streams_in(&self, other: Self) -> Self {
        let mut segments = vec![];
        let mut from = 0;
        let streams = self.segments.iter().filter(|segment| segment.mode == Mode::Stream);
        let ends = streams.map(Some).chain([None]);
        for stream in ends {
            let to = stream.map_or(other.blocks(), |stream| stream.blocks.start);
            let parts = other.segments.iter().map(|PlanSegment { blocks, mode }| PlanSegment {
                blocks: blocks.start.max(from)..blocks.end.min(to),
                mode: *mode,
            });
            segments.extend(parts.filter(|part| part.blocks.start < part.blocks.end));
            segments.extend(stream.cloned());
            from = stream.map_or(to, |stream| stream.blocks.end);
        }
        Self::new(segments)
    }
}

/// Whether a plan recomputes more blocks than another, or as many in shorter segments.
fn keeps_less(plan: &Plan, than: &Plan) -> bool {
    let longest = |plan: &Plan| {
        let again = plan.segments().iter().filter(|segment| segment.mode != Mode::Plain);
        std::cmp::Reverse(again.map(|segment| segment.blocks.len()).max())
    };
    (plan.recomputed(), longest(plan)) > (than.recomputed(), longest(than))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_streamed_stays_so_in_stronger_plans() {
        let plan = Plan::parse("0..3 plain, 3..5 stream, 5..6 stream, 6..9 plain", 9).unwrap();
        let texts: Vec<String> = plan.stronger().iter().map(Plan::to_string).collect();
        let every = "0..1 recompute, 1..2 recompute, 2..3 recompute, 3..5 stream, 5..6 stream, 6..7 recompute, \
                     7..8 recompute, 8..9 plain";
        assert_eq!(texts, ["0..3 recompute, 3..5 stream, 5..6 stream, 6..9 plain", every]);
        assert_eq!(plan.offloaded().to_string(), every.replace("recompute", "offload"));
        assert_eq!((plan.streamed(), plan.streams(), Plan::none(9).streams()), (3, true, false));
        assert_eq!(Plan::none(3).with_streamed(1).to_string(), "0..1 plain, 1..2 stream, 2..3 plain");
        assert_eq!(Plan::none(3).with_streamed(3), Plan::none(3));
    }

    proptest! {
        #[test]
        fn uniform_plans_cover_every_block_once(blocks in 0usize..200, length in 1usize..250) {
            for plan in [Plan::every(blocks, length).unwrap(), Plan::offload(blocks, length).unwrap(), Plan::none(blocks)] {
                let covered: Vec<usize> = plan.segments().iter().flat_map(|segment| segment.blocks.clone()).collect();
                prop_assert_eq!(covered, (0..blocks).collect::<Vec<_>>());
            }
            let every = Plan::every(blocks, length).unwrap();
            prop_assert!(every.segments().iter().rev().skip(1).all(|segment| segment.blocks.len() == length));
            let last = every.segments().last().map_or(0, |last| last.blocks.len());
            prop_assert_eq!(every.recomputed(), blocks - last);
        }

        #[test]
        fn the_last_plan_has_no_stronger_one(blocks in 0usize..60, length in 1usize..60) {
            let first = Plan::every(blocks, length).unwrap();
            let plans = first.stronger();
            prop_assert!(plans.iter().all(|plan| plan.blocks() == blocks));
            let recomputed: Vec<usize> = std::iter::once(&first).chain(&plans).map(Plan::recomputed).collect();
            prop_assert!(recomputed.is_sorted());
            prop_assert!(plans.last().unwrap_or(&first).stronger().is_empty());
        }
    }

    #[test]
    fn the_best_length_depends_on_what_a_block_keeps() {
        assert_eq!(Plan::sqrt(64, 1, 1), Plan::every(64, 8).unwrap());
        assert_eq!(Plan::sqrt(64, 1, 16), Plan::every(64, 2).unwrap());
        assert_eq!(Plan::sqrt(4, 1, 100), Plan::every(4, 1).unwrap());
        assert_eq!(Plan::sqrt(4, 100, 1), Plan::every(4, 4).unwrap());
        assert_eq!(Plan::every(4, 0), Err(Error::EmptySegment));
    }

    fn texts(plan: &str, blocks: usize) -> Vec<String> {
        Plan::parse(plan, blocks).unwrap().stronger().iter().map(Plan::to_string).collect()
    }

    #[test]
    fn each_plan_keeps_less_than_the_one_before() {
        assert_eq!(texts("none", 12), ["every:3", "every:1"]);
        assert_eq!(texts("every:6", 12), ["every:3", "every:1"]);
        assert_eq!(texts("every:3", 12), ["every:1"]);
        assert_eq!(texts("0..9 recompute, 9..12 plain", 12), ["every:3", "every:1"]);
        assert_eq!(texts("0..11 recompute, 11..12 plain", 12), ["every:1"]);
        assert_eq!(texts("offload:6", 12), ["offload:3", "offload"]);
        assert_eq!(texts("every:1", 12), [""; 0]);
        assert_eq!(texts("offload", 12), [""; 0]);
        assert_eq!(texts("none", 2), ["every:1"]);
        assert_eq!(texts("none", 1), [""; 0]);
        assert_eq!(texts("none", 0), [""; 0]);
    }
}
