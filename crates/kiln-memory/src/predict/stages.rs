//! Memory and time of one stage of a pipeline, with several micro-batches under way.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::trace::{StepTrace, TraceRole};

use super::estimate::{largest_buffer, live_bytes};
use super::layout::Layout;
use super::memory::Block;
use super::offloaded::uses;
use super::profile::BackendProfile;
use super::sizes::Sizes;
use super::stored::is_kilns;
use super::time::Clock;

/// Bytes and seconds of one stage's part of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StageEstimate {
    /// Bytes of its parameters and running statistics, with [`BackendProfile::parameter_bytes`] for each. Copies of other stages' parameters are included.
    pub parameter_bytes: u64,
    /// Bytes of the sums of gradients of its parameters.
    pub gradient_bytes: u64,
    /// Bytes of the optimizer state of its parameters.
    pub optimizer_bytes: u64,
    /// Bytes that it keeps for the backward pass of one micro-batch: activations, its input and burn's graph.
    pub activation_bytes: u64,
    /// The part of [`activation_bytes`](Self::activation_bytes) that came from the stage before.
    pub input_bytes: u64,
    /// The most bytes at once.
    pub peak_bytes: u64,
    /// Bytes of the largest buffer.
    #[serde(default)]
    pub largest_buffer_bytes: u64,
    /// The most bytes at once during forward and backward passes.
    pub passes_peak_bytes: u64,
    /// Bytes between the last backward pass and the update.
    pub between_bytes: u64,
    /// Estimated seconds of the forward pass of a micro-batch.
    pub forward_seconds: f64,
    /// Estimated seconds of the backward pass of a micro-batch.
    pub backward_seconds: f64,
    /// Estimated seconds of the update.
    pub update_seconds: f64,
}

/// The micro-batches of a batch that are under way in a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// The largest number of micro-batches whose forward pass has begun and whose backward pass has not ended.
    pub most: usize,
    /// Number of all micro-batches of the batch.
    pub micro_batches: usize,
    /// Samples of the last micro-batch. `None`: as many as of the others.
    pub last: Option<usize>,
    /// The most micro-batches that the stage before has sent and whose forward pass has not begun.
    pub sent: usize,
}

impl InFlight {
    /// Micro-batches run one after the other.
    pub const ONE: Self = Self { most: 1, micro_batches: usize::MAX, last: None, sent: 0 };

    /// Whether all micro-batches wait when the first backward pass begins.
    fn all_wait(self) -> bool {
        self.most > 1 && self.most >= self.micro_batches
    }

    /// The peak of the passes of several micro-batches. `one` is the peak of one micro-batch, `first` that of one without sums of gradients
    /// before it, and `kept` the bytes that one keeps between its passes, and the last one.
    fn peak(self, one: u64, first: u64, kept: [u64; 2]) -> u64 {
        let waiting = |others: usize| kept[0].saturating_mul(others as u64);
        match self.most {
            0 | 1 => one,
            // The sums are made at the end of the first backward pass. The last micro-batch waits then.
            most if self.all_wait() => {
                let others = |others: usize| if others > 0 { waiting(others - 1) + kept[1] } else { 0 };
                let first = first.saturating_add(others(most - 1));
                first.max(one.saturating_add(others(most - 2)))
            }
            most => one.saturating_add(waiting(most - 1)),
        }
    }
}

impl StepTrace {
    /// Estimates memory and time of a stage's part of a step ([`stages`](Self::stages)) while micro-batches of `micro_batch` samples are
    /// under way in it. Each micro-batch that waits for its backward pass keeps the bytes that the part keeps between its passes.
    ///
    /// For a whole step and one micro-batch it equals [`estimate`](Self::estimate).
    ///
    /// # Errors
    /// [`Error::BatchSize`] as for [`estimate`](Self::estimate).
    pub fn estimate_stage(
        &self,
        micro_batch: usize,
        in_flight: InFlight,
        profile: &BackendProfile,
    ) -> Result<StageEstimate, Error> {
        let sizes = Sizes::of(self, micro_batch, profile)?;
        let layout = Layout::of(self, &sizes, profile);
        let live = live_bytes(self, &layout, profile);
        let [start, backward, update, end] = self.phases;
        let most =
            |phase: Range<usize>| live[phase.start - start..phase.end - start].iter().copied().max().unwrap_or(0);
        let mut stage = self.held(&layout, profile);
        stage.activation_bytes += profile.graph_bytes(self);
        let first = live.iter().zip(self.sums_alive(&layout, profile)).take(update - start);
        let first = first.map(|(live, sums)| live.saturating_sub(sums)).max().unwrap_or(0);
        let kept = stage.activation_bytes;
        let last = match in_flight.last.filter(|last| *last < micro_batch && in_flight.all_wait()) {
            Some(last) => self.estimate_stage(last, InFlight::ONE, profile)?.activation_bytes,
            None => kept,
        };
        let sent = stage.input_bytes.saturating_mul(in_flight.sent as u64);
        stage.passes_peak_bytes = in_flight.peak(most(start..update), first, [kept, last]).saturating_add(sent);
        stage.peak_bytes = stage.passes_peak_bytes.max(most(update..end));
        stage.between_bytes = live.get(update - start).copied().unwrap_or(0);
        stage.largest_buffer_bytes = largest_buffer(self, &layout);
        let clock = Clock::new(self, &sizes, profile);
        let seconds = |phase: Range<usize>| phase.map(|index| clock.seconds(index)).sum();
        stage.forward_seconds = seconds(start..backward);
        stage.backward_seconds = seconds(backward..update);
        stage.update_seconds = seconds(update..end);
        Ok(stage)
    }

    /// Bytes of the sums of gradients of earlier micro-batches at each operation of the step. A sum to which an operation adds rows is made by the
    /// operation where there was none before.
    fn sums_alive(&self, layout: &Layout, profile: &BackendProfile) -> Vec<u64> {
        let [start, .., end] = self.phases;
        let (mut alive, uses) = (vec![0; end - start], uses(self));
        for block in layout.blocks.iter().filter(|block| (block.born as usize) < start) {
            let mut roles = layout.tensors_of(block).map(|tensor| self.tensors[tensor as usize].role);
            if roles.any(|role| role == TraceRole::Gradient) {
                let first =
                    layout.tensors_of(block).filter_map(|tensor| uses[tensor as usize]).map(|(first, _)| first).min();
                let until = match first {
                    Some(first) if is_kilns(self, first) => first,
                    _ => block.dies as usize + 1,
                };
                let until = until.clamp(start, end) - start;
                alive[..until].iter_mut().for_each(|bytes| *bytes += profile.taken(block.bytes));
            }
        }
        alive
    }

    /// Bytes by the purpose for which they are held.
    fn held(&self, layout: &Layout, profile: &BackendProfile) -> StageEstimate {
        let [start, backward, update, _] = self.phases;
        let received = self.received();
        let parameters = profile.parameter_bytes * self.model_tensors();
        let mut held = StageEstimate { parameter_bytes: parameters, ..StageEstimate::default() };
        for block in &layout.blocks {
            let (born, dies) = (block.born as usize, block.dies as usize);
            let bytes = profile.taken(block.bytes);
            let roles = || layout.tensors_of(block).map(|tensor| self.tensors[tensor as usize].role);
            if roles().any(|role| role == TraceRole::Gradient) {
                held.gradient_bytes += if born < update && dies >= update { bytes } else { 0 };
            } else if born < start && dies >= start {
                match roles().any(|role| matches!(role, TraceRole::Parameter | TraceRole::Updated)) {
                    true => held.parameter_bytes += bytes,
                    false => held.optimizer_bytes += bytes,
                }
            } else if is_kept(block, start, backward) {
                held.activation_bytes += bytes;
                held.input_bytes += if received.contains(&block.first) { bytes } else { 0 };
            }
        }
        held
    }

    /// The tensors that came from the stage before.
    fn received(&self) -> &[u32] {
        let [start, backward, ..] = self.phases;
        let mut operations = start..backward;
        let receive = operations.find(|index| self.graph.kind_at(*index).name == "Receive");
        receive.map_or(&[], |index| self.graph.outputs_at(index))
    }
}

/// Whether a block is made in the forward pass and used in the backward pass.
fn is_kept(block: &Block, start: usize, backward: usize) -> bool {
    (start..backward).contains(&(block.born as usize)) && block.dies as usize >= backward
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sums_of_gradients_are_made_by_the_first_backward_pass() {
        let peak = |most, micro_batches| InFlight { most, micro_batches, last: None, sent: 0 }.peak(100, 90, [30; 2]);
        assert_eq!((peak(1, 1), peak(1, 8), InFlight::ONE.peak(100, 90, [30; 2])), (100, 100, 100));
        assert_eq!((peak(2, 8), peak(4, 8)), (130, 190));
        assert_eq!((peak(2, 2), peak(8, 8)), (120, 300), "all wait, and there are no sums yet");
        let small_last = |most| InFlight { most, micro_batches: 8, last: Some(1), sent: 0 }.peak(100, 90, [30, 10]);
        assert_eq!((small_last(4), small_last(8)), (190, 280));
        let large_sums = InFlight { most: 2, micro_batches: 2, last: None, sent: 0 }.peak(100, 10, [30; 2]);
        assert_eq!(large_sums, 100, "the second backward pass has the sums, and no other waits");
    }
}
