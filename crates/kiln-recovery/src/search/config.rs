//! The rules of the search for micro-batch sizes.

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// The rules by which micro-batches shrink and grow.
///
/// ```
/// use kiln_recovery::MicroBatchSearchConfig;
///
/// let config = MicroBatchSearchConfig::new(64).with_start(16).with_limit(8 << 30);
/// assert_eq!((config.batch(), config.start(), config.success_interval()), (64, 16, 25));
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MicroBatchSearchConfig {
    batch: usize,
    start: Option<usize>,
    min: usize,
    #[serde(alias = "calm")]
    success_interval: u32,
    max_backoff: u32,
    limit: Option<u64>,
    #[serde(default = "one")]
    granularity: usize,
}

fn one() -> usize {
    1
}

impl MicroBatchSearchConfig {
    /// The rules for batches of `batch` samples: the search starts with the whole batch and may go down to 1. A larger size
    /// is tried after 25 successes; this interval doubles at most 5 times while a size keeps failing.
    pub fn new(batch: usize) -> Self {
        Self { batch, start: None, min: 1, success_interval: 25, max_backoff: 5, limit: None, granularity: 1 }
    }

    /// Sets the first size to try, for example from a prediction. Default: the whole batch.
    #[must_use]
    pub fn with_start(self, start: impl Into<Option<usize>>) -> Self {
        Self { start: start.into(), ..self }
    }

    /// Sets the smallest size, at least 1. Default: 1.
    #[must_use]
    pub fn with_min(self, min: usize) -> Self {
        Self { min, ..self }
    }

    /// Sets the successes in a row before a larger size is tried, at least 1. Default: 25.
    #[must_use]
    pub fn with_success_interval(self, success_interval: u32) -> Self {
        Self { success_interval, ..self }
    }

    /// Sets how many times the interval before a failed size is tried again may double. Default: 5.
    #[must_use]
    pub fn with_max_backoff(self, max_backoff: u32) -> Self {
        Self { max_backoff, ..self }
    }

    /// Sets the total bytes that an attempt may use. With the peaks of sizes that fitted, the limit predicts the largest size. Default:
    /// unknown, sizes are found by trying.
    #[must_use]
    pub fn with_limit(self, limit: impl Into<Option<u64>>) -> Self {
        Self { limit: limit.into(), ..self }
    }

    /// Makes the sizes that the search chooses multiples of `granularity`, and powers of two below it. The whole batch, the first and the
    /// smallest size stay possible. A device that compiles or tunes its kernels for each size then sees few sizes. Default: 1, every size.
    #[must_use]
    pub fn with_granularity(self, granularity: usize) -> Self {
        Self { granularity, ..self }
    }

    /// Samples of a whole batch. No micro-batch is larger.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// The first size to try.
    pub fn start(&self) -> usize {
        self.start.unwrap_or(self.batch)
    }

    /// The smallest size.
    pub fn min(&self) -> usize {
        self.min
    }

    /// Successes in a row before a larger size is tried.
    pub fn success_interval(&self) -> u32 {
        self.success_interval
    }

    /// How many times the interval before a failed size is tried again may double.
    pub fn max_backoff(&self) -> u32 {
        self.max_backoff
    }

    /// Total bytes that an attempt may use, if known.
    pub fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// Sizes that the search chooses are multiples of this, and powers of two below it.
    pub fn granularity(&self) -> usize {
        self.granularity
    }

    /// The largest size to choose that is at most `size`.
    pub(super) fn at_most(&self, size: usize) -> usize {
        let size = size.clamp(self.min, self.batch);
        let chosen = match size {
            _ if size == self.batch => size,
            _ if size >= self.granularity => size - size % self.granularity,
            _ => 1 << size.ilog2(),
        };
        chosen.max(self.min)
    }

    /// The smallest size to choose that is more than `size`; the whole batch where there is none.
    pub(super) fn above(&self, size: usize) -> usize {
        let next = match size < self.granularity {
            true => (size + 1).next_power_of_two().min(self.granularity),
            false => (size / self.granularity + 1) * self.granularity,
        };
        next.min(self.batch)
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let positive = |what, value: usize| if value == 0 { Err(Error::Zero { what }) } else { Ok(()) };
        positive("batch size", self.batch)?;
        positive("smallest micro-batch", self.min)?;
        positive("success interval", self.success_interval as usize)?;
        positive("granularity", self.granularity)?;
        let range = |what, size: usize, least| match (least..=self.batch).contains(&size) {
            true => Ok(()),
            false => Err(Error::Range { what, size, least, batch: self.batch }),
        };
        range("smallest micro-batch", self.min, 1)?;
        self.start.map_or(Ok(()), |start| range("first micro-batch", start, self.min))
    }
}
