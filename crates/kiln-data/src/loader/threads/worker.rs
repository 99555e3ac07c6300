//! A worker thread as the code that reads samples sees it: the byte budget, the policy for bad samples, and a clock.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use crate::caught::caught;
use crate::decode::take_reading;
use crate::error::Error;
use crate::loader::bad_samples::BadSampleLog;
use crate::loader::budget::Budget;
use crate::loader::config::{BatchPlan, LoaderConfig};
use crate::loader::stats::{Counters, LoaderStats, Stage};
use crate::order::Sampler;
use crate::printable::printable;

/// The budget, the bad samples and the statistics of a loader.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) budget: Budget,
    pub(crate) bad: BadSampleLog,
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
            return Err(Error::setting("budget", value, "at least two batches"));
        }
        Ok(())
    }

    pub(crate) fn stats(&self) -> LoaderStats {
        self.counters.snapshot(self.bad.counts(), self.budget.in_flight())
    }
}

/// A thread that makes a batch, for the code that reads the samples: it offers the byte budget, the policy for samples that
/// cannot be read, and a clock.
#[derive(Debug)]
pub struct Worker {
    pub(super) shared: Arc<Shared>,
    /// Where substitutes come from.
    pub(super) sampler: Arc<Sampler>,
    /// Whether the iterator was dropped, so that the batch is not needed.
    pub(super) cancelled: Arc<AtomicBool>,
    /// Samples of the batch in the making that were left out.
    pub(super) left_out: AtomicUsize,
}

impl Worker {
    /// Loads sample `id`. If it cannot be read, the loader's policy decides: the result is `None`, or another sample of the
    /// same loader, drawn as its order draws. `load` gets the id of the sample to read. A sample whose `load` panics counts
    /// as one that cannot be read.
    ///
    /// # Errors
    /// The error of `load` when the policy is to fail, or when the sample did not cause it
    /// ([`Error::is_of_a_sample`]); [`Error::TooManyBadSamples`].
    pub fn sample<T>(
        &self,
        plan: &BatchPlan,
        id: usize,
        load: impl Fn(usize) -> Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        let guarded = |id| {
            let loaded = caught(|| load(id), |message| Error::SamplePanic { id, message });
            if let Err(Error::Repairable { path, damage }) = &loaded {
                self.shared.bad.add_repairable(id, path, damage);
            }
            loaded
        };
        let substitute = |position| self.sampler.at(plan.epoch, position);
        let sample = self.shared.bad.resolve((plan.epoch, id), self.sampler.samples(), substitute, guarded)?;
        self.left_out.fetch_add(usize::from(sample.is_none()), Relaxed);
        Ok(sample)
    }

    /// Runs `work`, which holds `bytes` temporarily, when the budget has room for them. Batches that were begun earlier
    /// are first.
    ///
    /// # Errors
    /// Those of `work`; [`Error::NoRoom`] for more bytes than [`image_limit`](Self::image_limit);
    /// [`Error::Cancelled`] when the iterator of the epoch was dropped.
    pub fn within<T>(&self, plan: &BatchPlan, bytes: u64, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let limit = self.image_limit();
        if bytes > limit {
            return Err(Error::NoRoom { bytes, limit });
        }
        let room = self.timed(Stage::Room, || self.shared.budget.admit_image(bytes, plan.index, &self.cancelled));
        let _room = room.ok_or(Error::Cancelled)?;
        work()
    }

    /// The most bytes that decoding one sample may take: the part of the loader's budget that is not for batches, at least
    /// half.
    pub fn image_limit(&self) -> u64 {
        self.shared.budget.image_limit()
    }

    /// Notes that sample `id` was read in spite of damage. Warns once about each.
    pub(crate) fn repaired(&self, id: usize, path: &Path, damage: &str) {
        if self.shared.bad.add_repairable(id, path, damage) {
            tracing::warn!("sample {id}: '{}' was read in spite of damage: {damage}", printable(path));
        }
    }

    /// Runs `work`, which decodes a file. The time of reading counts as [`Stage::Read`], the rest as [`Stage::Decode`].
    pub(crate) fn decoding<T>(&self, work: impl FnOnce() -> T) -> T {
        let (_, begun) = (take_reading(), Instant::now());
        let value = work();
        let (all, reading) = (begun.elapsed(), take_reading());
        self.shared.counters.spent(Stage::Read, reading.min(all));
        self.shared.counters.spent(Stage::Decode, all.saturating_sub(reading));
        value
    }

    /// Runs `work` and adds its time to `stage`.
    pub fn timed<T>(&self, stage: Stage, work: impl FnOnce() -> T) -> T {
        self.shared.counters.timed(stage, work)
    }
}
