use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use crate::bad_samples::BadSampleLog;
use crate::budget::Budget;
use crate::decode::take_reading;
use crate::stats::{Counters, LoaderStats};
use crate::{BadSampleReport, BatchPlan, Error, LoaderConfig, Sampler, Stage};

/// What all threads and epochs of a loader share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) budget: Budget,
    pub(crate) bad: BadSampleLog,
    pub(crate) counters: Counters,
}

impl Shared {
    /// `batch`: bytes of the largest batch.
    pub(crate) fn new(config: &LoaderConfig, batch: u64) -> Result<Self, Error> {
        if batch > config.budget / 2 {
            let value = format!("{} bytes, with batches of {batch}", config.budget);
            return Err(Error::InvalidSetting { field: "budget", value, expected: "at least two batches" });
        }
        // One more than is waiting or in the making: the batch that the consumer has.
        let wanted = batch.saturating_mul(config.prefetch as u64 + 1);
        let (budget, bad) = (Budget::new(config.budget, wanted), BadSampleLog::new(config.bad_samples));
        Ok(Self { budget, bad, counters: Counters::default() })
    }

    pub(crate) fn stats(&self) -> LoaderStats {
        self.counters.snapshot(self.bad.len(), self.budget.in_flight())
    }

    pub(crate) fn bad_samples(&self) -> Vec<BadSampleReport> {
        self.bad.reports()
    }
}

/// What a thread that makes a batch may ask of its loader: room in the byte budget, what is done about a sample that
/// cannot be read, and a clock.
#[derive(Debug)]
pub struct Worker {
    pub(crate) shared: Arc<Shared>,
    /// Where substitutes come from.
    pub(crate) sampler: Arc<Sampler>,
    /// The iterator was dropped; nobody wants the batch any more.
    pub(crate) cancelled: Arc<AtomicBool>,
    /// Samples of the batch in the making that were left out.
    pub(crate) left_out: AtomicUsize,
}

impl Worker {
    /// What `load` makes of sample `id`; if it cannot be read, what the loader's policy puts in its place: nothing, or
    /// another sample of the same loader's, drawn as its order draws. `load` is called with the id it is to read. A panic in it is a sample that cannot be read.
    ///
    /// # Errors
    /// That of `load` when the policy is to fail, or when it is none of the sample's: [`Error::is_of_a_sample`];
    /// [`Error::TooManyBadSamples`].
    pub fn sample<T>(
        &self,
        plan: &BatchPlan,
        id: usize,
        load: impl Fn(usize) -> Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        let guarded = |id| {
            let panicked = |panic| Err(Error::SamplePanic { id, message: message(panic) });
            catch_unwind(AssertUnwindSafe(|| load(id))).unwrap_or_else(panicked)
        };
        let substitute = |position| self.sampler.at(plan.epoch, position);
        let sample = self.shared.bad.resolve((plan.epoch, id), self.sampler.samples(), substitute, guarded)?;
        self.left_out.fetch_add(usize::from(sample.is_none()), Relaxed);
        Ok(sample)
    }

    /// Runs `work` once there is room for the `bytes` that it will hold for a while. Batches that were begun
    /// earlier go first.
    ///
    /// # Errors
    /// Those of `work`; [`Error::NoRoom`] for more bytes than [`image_limit`](Self::image_limit);
    /// [`Error::Cancelled`] when the epoch was given up meanwhile.
    pub fn within<T>(&self, plan: &BatchPlan, bytes: u64, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let limit = self.image_limit();
        if bytes > limit {
            return Err(Error::NoRoom { bytes, limit });
        }
        let room = self.timed(Stage::Room, || self.shared.budget.decode(bytes, plan.index, &self.cancelled));
        let _room = room.ok_or(Error::Cancelled)?;
        work()
    }

    /// Bytes that one sample may take while it is decoded: what the loader's budget leaves beside the batches, at least half.
    pub fn image_limit(&self) -> u64 {
        self.shared.budget.image_limit()
    }

    /// Runs `work`, which decodes a file: what it reads is booked on [`Stage::Read`], the rest on [`Stage::Decode`].
    pub(crate) fn decoding<T>(&self, work: impl FnOnce() -> T) -> T {
        let (_, begun) = (take_reading(), Instant::now());
        let value = work();
        let (all, reading) = (begun.elapsed(), take_reading());
        self.shared.counters.spent(Stage::Read, reading.min(all));
        self.shared.counters.spent(Stage::Decode, all.saturating_sub(reading));
        value
    }

    /// Runs `work` and books its time on `stage`.
    pub fn timed<T>(&self, stage: Stage, work: impl FnOnce() -> T) -> T {
        self.shared.counters.timed(stage, work)
    }
}

/// The text of a panic, on one line.
pub(crate) fn message(panic: Box<dyn std::any::Any + Send>) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
    text.replace('\n', " ")
}
