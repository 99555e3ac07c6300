//! The trace of a step under a checkpoint plan.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::error::Error;

use super::rewrite::Rewrite;
use super::step_trace::{StepTrace, TraceRole};

/// Consecutive blocks of a chain whose activations are not kept: they run again in the backward pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recomputed {
    /// The blocks, counted from zero.
    pub blocks: Range<usize>,
    /// Whether the segment's input is kept in host memory, on a device with memory of its own.
    pub offloaded: bool,
    /// Whether its input and its parameters are in a store, except while the segment runs. All gradients, and the optimizer's state for all parameters,
    /// are then in the store, and the update takes one parameter after the other.
    pub streamed: bool,
}

impl StepTrace {
    /// The step under a checkpoint plan that recomputes segments of its chain. Blocks are those between the
    /// [`cuts`](crate::Recorder::cut).
    ///
    /// A segment that is recomputed (Chen et al. 2016) keeps its input. Its forward pass is repeated right before its backward pass. The
    /// recorded operations are rewritten, since the capture device cannot record a backward pass within another one.
    ///
    /// Each additional segment lowers the bytes that are kept for the backward pass. In a chain of equal blocks it also lowers the peak,
    /// except for the last segment, which should stay plain. In other chains the peak can rise by some percent: a replay needs memory
    /// while gradients already exist, and under autocast it makes its gradients in f32 at its end.
    ///
    /// # Errors
    /// [`Error::Plan`] for blocks that are not in the chain, for segments that overlap or are out of order, and for a model
    /// whose backward pass does not run the segments one after the other.
    pub fn with_plan(&self, segments: &[Recomputed]) -> Result<Self, Error> {
        let invalid = |segment: &Recomputed, reason| Error::Plan {
            from: segment.blocks.start,
            to: segment.blocks.end,
            blocks: self.blocks(),
            reason,
        };
        let mut after = 0;
        for segment in segments {
            let Range { start, end } = segment.blocks;
            if self.blocks() == 0 {
                return Err(invalid(segment, "the step was recorded without cuts between its blocks"));
            }
            if start >= end || end > self.blocks() {
                return Err(invalid(segment, "expected blocks of the chain"));
            }
            if start < after {
                return Err(invalid(segment, "expected segments one after the other"));
            }
            after = end;
        }
        if segments.is_empty() {
            return Ok(self.clone());
        }
        let mut rewrite = Rewrite::of(self);
        // The backward pass begins with the last segment.
        let mut before = self.phases[1];
        let (mut lengths, mut copied) = (vec![], 0);
        for segment in segments.iter().rev() {
            let span = self.cuts[segment.blocks.start]..self.cuts[segment.blocks.end];
            let (length, parameters, replays) = (span.len(), self.parameters_in(&span), rewrite.replays());
            match rewrite.recompute(span, segment.offloaded || segment.streamed, before) {
                Some(place) => before = place,
                None => return Err(invalid(segment, "its backward pass is not in one piece")),
            }
            // Nothing is recomputed of a segment that needs no gradient.
            if rewrite.replays() > replays {
                lengths.push(length);
                copied += parameters;
            }
        }
        let mut trace = rewrite.finish();
        trace.copied = copied;
        trace.recomputed = lengths.iter().sum::<usize>() - lengths.iter().max().copied().unwrap_or(0);
        let streamed = segments.iter().filter(|segment| segment.streamed).map(|segment| segment.blocks.clone());
        let streamed: Vec<_> = streamed.collect();
        if !streamed.is_empty() {
            trace.stored = Some(streamed);
        }
        Ok(trace)
    }

    /// The number of parameters and running statistics that operations read.
    fn parameters_in(&self, operations: &Range<usize>) -> usize {
        let read = operations.clone().flat_map(|index| self.graph.inputs_at(index)).map(|input| input.tensor);
        let parameters = read.filter(|tensor| self.tensors[*tensor as usize].role == TraceRole::Parameter);
        parameters.collect::<BTreeSet<u32>>().len()
    }

    /// Says how many bytes of a parameter in f32 an update in a store has in memory, from the parameter's shape.
    pub fn with_parts_in_store(self, bytes_of_part: impl Fn(&[usize]) -> u64) -> Self {
        let parts = self.learned_shapes().map(|(path, shape, _)| (path.to_owned(), bytes_of_part(&shape))).collect();
        Self { parts, ..self }
    }

    /// The bytes of a parameter that an update in a store has in memory. `None` for one that is not updated, and for all parameters if an update
    /// does not [divide](Self::with_parts_in_store) them.
    pub fn part_in_store(&self, path: &str) -> Option<u64> {
        self.parts.get(path).copied()
    }

    /// Says which parameters are in memory some rows at a time in a step in a store, by their paths and with the bytes that an update has in
    /// memory. The step was recorded with operations that read them so.
    pub fn with_rows_in_store(self, by_rows: BTreeMap<String, u64>) -> Self {
        Self { by_rows, ..self }
    }

    /// The step of a run whose gradients and optimizer state are in a store, and all of whose parameters are in memory. A
    /// [plan](Self::with_plan) that streams segments makes such a step too, with the parameters of these segments in the store.
    pub fn in_store(&self) -> Self {
        Self { stored: Some(vec![]), ..self.clone() }
    }
}
