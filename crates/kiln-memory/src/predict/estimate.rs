//! The peak and the times of a step, without a record for each buffer.

use std::ops::Range;

use crate::error::Error;
use crate::trace::StepTrace;

use super::layout::Layout;
use super::margin::overheads;
use super::memory::Block;
use super::profile::BackendProfile;
use super::sizes::Sizes;
use super::time::Clock;

/// Peak and times of a step at one batch size on a device.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct StepEstimate {
    /// The most bytes at once: the `peak_bytes` of [`StepTrace::predict`].
    pub peak_bytes: u64,
    /// Bytes of the largest buffer.
    pub largest_buffer_bytes: u64,
    /// Estimated seconds of the forward pass.
    pub forward_seconds: f64,
    /// Estimated seconds of the backward pass.
    pub backward_seconds: f64,
    /// Estimated seconds of the parameter update.
    pub update_seconds: f64,
}

impl StepTrace {
    /// The peak and the times of [`predict`](Self::predict), about ten times faster, for planners that compare many plans and batch
    /// sizes.
    ///
    /// ```
    /// use burn::nn::{Linear, LinearConfig};
    /// use burn::optim::SgdConfig;
    /// use burn::tensor::Tensor;
    /// use kiln_memory::{BackendProfile, StepOptions, record_step};
    ///
    /// let trace = record_step(
    ///     |device| LinearConfig::new(512, 512).init(device),
    ///     |model: &Linear, step| model.forward(Tensor::<2>::zeros([step.batch(), 512], step.device())).square().mean(),
    ///     &SgdConfig::new().build(),
    ///     StepOptions::default(),
    /// )?;
    /// let profile = BackendProfile::flex();
    /// let estimate = trace.estimate(64, &profile)?;
    /// assert_eq!(estimate.peak_bytes, trace.predict(64, &profile)?.peak_bytes);
    /// # Ok::<(), kiln_memory::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BatchSize`] for 0, and for a size whose bytes cannot be counted.
    pub fn estimate(&self, batch: usize, profile: &BackendProfile) -> Result<StepEstimate, Error> {
        let sizes = Sizes::of(self, batch, profile)?;
        let layout = Layout::of(self, &sizes, profile);
        let peak_bytes = live_bytes(self, &layout, profile).into_iter().max().unwrap_or(0);
        let largest_buffer_bytes = largest_buffer(self, &layout);
        let clock = Clock::new(self, &sizes, profile);
        let seconds = |operations: Range<usize>| operations.map(|index| clock.seconds(index)).sum();
        let [start, backward, update, end] = self.phases;
        Ok(StepEstimate {
            peak_bytes,
            largest_buffer_bytes,
            forward_seconds: seconds(start..backward),
            backward_seconds: seconds(backward..update),
            update_seconds: seconds(update..end),
        })
    }
}

/// The blocks that are alive at some time of the step.
fn of_step<'a>(trace: &StepTrace, layout: &'a Layout) -> impl Iterator<Item = &'a Block> {
    let [start, .., end] = trace.phases;
    layout.blocks.iter().filter(move |block| block.dies as usize >= start && (block.born as usize) < end)
}

/// Bytes of the largest buffer of the step.
pub(super) fn largest_buffer(trace: &StepTrace, layout: &Layout) -> u64 {
    of_step(trace, layout).map(|block| block.bytes).max().unwrap_or(0)
}

/// Bytes alive at each operation of the step.
pub(super) fn live_bytes(trace: &StepTrace, layout: &Layout, profile: &BackendProfile) -> Vec<u64> {
    let [start, .., end] = trace.phases;
    let mut change = vec![0i128; end - start + 1];
    let mut add = |bytes: u64, first: usize, last: usize| {
        change[first] += i128::from(bytes);
        change[last + 1] -= i128::from(bytes);
    };
    for block in of_step(trace, layout) {
        let (born, dies) = (block.born as usize, block.dies as usize);
        add(profile.taken(block.bytes), born.saturating_sub(start), dies.min(end - 1) - start);
    }
    for (index, bytes) in layout.workspaces[start..end].iter().enumerate() {
        add(*bytes, index, index);
    }
    for overhead in overheads(trace, layout.batch, profile) {
        add(overhead.bytes, 0, overhead.last);
    }
    let live = change[..end - start].iter().scan(0i128, |live, change| {
        *live += change;
        Some(u64::try_from(*live).unwrap_or(0))
    });
    live.collect()
}
