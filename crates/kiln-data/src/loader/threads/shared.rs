//! The state that all threads and epochs of a loader share.

use crate::error::Error;
use crate::loader::bad_samples::{BadSampleLog, BadSampleReport};
use crate::loader::budget::Budget;
use crate::loader::config::LoaderConfig;
use crate::loader::stats::{Counters, LoaderStats};

/// The budget, the bad samples and the statistics of a loader.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) budget: Budget,
    pub(super) bad: BadSampleLog,
    pub(super) counters: Counters,
}

impl Shared {
    /// For batches of up to `batch` bytes, and images that take up to `image` bytes while they are decoded, if that is
    /// known.
    pub(crate) fn new(config: &LoaderConfig, batch: u64, image: Option<u64>) -> Self {
        let images = image.map_or(u64::MAX, |image| image.saturating_mul(config.workers as u64));
        // One more than is waiting or in the making: the batch that the consumer has.
        let wanted = batch.saturating_mul(config.prefetch as u64 + 1);
        let (budget, bad) = (Budget::new(config.budget, wanted, images), BadSampleLog::new(config.bad_samples));
        Self { budget, bad, counters: Counters::default() }
    }

    /// Refuses a budget below two batches of `batch` bytes.
    pub(crate) fn check(config: &LoaderConfig, batch: u64) -> Result<(), Error> {
        if batch > config.budget / 2 {
            let value = format!("{} bytes, with batches of {batch}", config.budget);
            return Err(Error::InvalidSetting { field: "budget", value, expected: "at least two batches" });
        }
        Ok(())
    }

    pub(crate) fn stats(&self) -> LoaderStats {
        self.counters.snapshot(self.bad.len(), self.bad.repairable_len(), self.budget.in_flight())
    }

    pub(crate) fn repairable_samples(&self) -> Vec<BadSampleReport> {
        self.bad.repairable()
    }

    pub(crate) fn bad_samples(&self) -> Vec<BadSampleReport> {
        self.bad.reports()
    }
}
