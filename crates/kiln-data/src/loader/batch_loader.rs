//! Makes the batches of any number of epochs on worker threads, within a byte budget.

use std::ops::Range;
use std::sync::Arc;

use crate::error::Error;
use crate::order::{LoaderState, Remainder, Replica, Sampler};

use super::bad_samples::BadSampleReport;
use super::config::{BatchPlan, LoaderConfig};
use super::stats::LoaderStats;
use super::threads::{Batches, Bytes, CopyBatch, DevicePrefetch, Make, Shared, Source, Worker, Workers};

/// Batches of samples, made by worker threads, in an order that is a function of (seed, epoch).
///
/// The loader does not know the type of a sample: it chooses the ids of a batch and calls `make`. An error or a panic of
/// `make` is delivered in place of its batch.
///
/// Clones share the budget, the statistics and the list of bad samples.
pub struct Loader<O> {
    sampler: Sampler,
    config: LoaderConfig,
    bytes: Bytes,
    make: Make<O>,
    copy: Option<(CopyBatch<O>, u64)>,
    /// Bytes of the largest batch and of the largest image, where they are known.
    largest: (Option<u64>, Option<u64>),
    shared: Arc<Shared>,
}

impl<O> Clone for Loader<O> {
    fn clone(&self) -> Self {
        Self {
            sampler: self.sampler.clone(),
            config: self.config.clone(),
            bytes: self.bytes.clone(),
            make: self.make.clone(),
            copy: self.copy.clone(),
            largest: self.largest,
            shared: self.shared.clone(),
        }
    }
}

impl<O: Send + 'static> Loader<O> {
    /// A loader of batches of the samples `0..samples`. It does not know their bytes and bounds only their number.
    /// # Errors
    /// Those of [`Sampler::new`], and [`Error::InvalidSetting`] for workers or a prefetch that are not from 1 to 1024.
    pub fn new(
        samples: usize,
        config: LoaderConfig,
        make: impl Fn(&BatchPlan) -> Result<O, Error> + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let loader = Self::budgeted(samples, config, |_| 0, move |plan, _| make(plan))?;
        Ok(Self { largest: (None, None), ..loader })
    }

    /// A loader of batches within a byte budget. `bytes` gives the bytes of a batch on the host before it is made. `make` asks its
    /// [`Worker`] for the bytes that it needs temporarily.
    ///
    /// The first batch decides how the budget is divided between batches and images. If later batches are larger, give the
    /// bytes of the largest with [`with_largest_batch`](Self::with_largest_batch): a batch larger than the batches' part is
    /// [`Error::NoRoom`]. Several epochs at a time, and clones, share the budget; each epoch always gets one batch.
    ///
    /// # Errors
    /// Those of [`new`](Self::new), and [`Error::InvalidSetting`] for a budget that is not twice the first batch.
    pub fn budgeted(
        samples: usize,
        config: LoaderConfig,
        bytes: impl Fn(&BatchPlan) -> u64 + Send + Sync + 'static,
        make: impl Fn(&BatchPlan, &Worker) -> Result<O, Error> + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        config.check()?;
        let sampler = Sampler::new(samples, config.batch_size, config.order.clone(), config.remainder, config.replica)?;
        let first = bytes(&BatchPlan { epoch: 0, index: 0, ids: sampler.ids(0, 0) });
        Shared::check(&config, first)?;
        let shared = Arc::new(Shared::new(&config, first, None));
        let (bytes, make): (Bytes, Make<O>) = (Arc::new(bytes), Arc::new(make));
        Ok(Self { sampler, config, bytes, make, copy: None, largest: (Some(first), None), shared })
    }

    /// Divides the budget for batches of up to `bytes`. The statistics restart.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for a budget below two such batches.
    pub fn with_largest_batch(self, bytes: u64) -> Result<Self, Error> {
        Shared::check(&self.config, bytes)?;
        let largest = (Some(bytes), self.largest.1);
        Ok(Self { largest, shared: Arc::new(Shared::new(&self.config, bytes, largest.1)), ..self })
    }

    /// Sets the bytes that decoding the largest sample takes, for example
    /// [`ImageSet::largest_decode_bytes`](crate::ImageSet::largest_decode_bytes). It bounds the bytes of the images that are decoded at a
    /// time, to this for each worker, and so [`peak_bytes`](Self::peak_bytes). A sample that takes more is decoded while no other is. The
    /// statistics restart.
    #[must_use]
    pub fn with_largest_image(self, bytes: u64) -> Self {
        let largest = (self.largest.0, Some(bytes));
        let shared = Arc::new(Shared::new(&self.config, largest.0.unwrap_or(0), largest.1));
        Self { largest, shared, ..self }
    }

    /// The most bytes of host memory that the loader holds at a time, for one epoch at a time: the batches that wait, are being made and
    /// are in use, and the images that are being decoded. It is at most [`LoaderConfig::budget`].
    ///
    /// The images count with [`with_largest_image`](Self::with_largest_image) for each worker where that was given,
    /// otherwise with all of the budget that is not for batches. [`TextBatch`](crate::TextBatch),
    /// [`DocumentBatch`](crate::DocumentBatch) and [`TileBatch`](crate::TileBatch) give it themselves. `None` for a loader
    /// made with [`new`](Self::new), which does not know the bytes of its batches.
    pub fn peak_bytes(&self) -> Option<u64> {
        Some(self.batches_peak()? + self.shared.budget.images_limit())
    }

    /// Whether as many bytes of batches are in flight as [`peak_bytes`](Self::peak_bytes) counts. `false` for a loader made with
    /// [`new`](Self::new).
    pub fn is_full(&self) -> bool {
        self.batches_peak().is_some_and(|bytes| self.shared.budget.queued() >= bytes)
    }

    /// The most bytes of batches in flight.
    fn batches_peak(&self) -> Option<u64> {
        let in_flight = self.batches().min(self.config.prefetch + 1) as u64;
        Some(self.largest.0?.saturating_mul(in_flight).min(self.shared.budget.batch_limit()))
    }

    /// Calls `copy` with every batch on a thread of its own, ahead of the consumer: to copy batches to the device. At most
    /// `depth` bytes of batches wait there, or one batch. On the host they count in the budget until the consumer is
    /// done with them, as all others.
    #[must_use]
    pub fn with_device_prefetch(
        mut self,
        depth: u64,
        copy: impl Fn(O) -> Result<O, Error> + Send + Sync + 'static,
    ) -> Self {
        self.copy = Some((Arc::new(copy), depth));
        self
    }

    /// The loader with each batch turned into another value by `into`, on the worker threads. The copy ahead of the consumer, if there is one,
    /// is left out.
    #[must_use]
    pub fn map<P: Send + 'static>(self, into: impl Fn(O) -> P + Send + Sync + 'static) -> Loader<P> {
        let Self { sampler, config, bytes, make, largest, shared, .. } = self;
        let make: Make<P> = Arc::new(move |plan, worker| make(plan, worker).map(&into));
        Loader { sampler, config, bytes, make, copy: None, largest, shared }
    }

    /// Puts samples of similar length into the same batch; see [`Sampler::bucketed`].
    ///
    /// # Errors
    /// Those of [`Sampler::bucketed`].
    pub fn bucketed(self, lengths: impl Into<Arc<[u32]>>, pool: usize) -> Result<Self, Error> {
        Ok(Self { sampler: self.sampler.clone().bucketed(lengths, pool)?, ..self })
    }

    /// The most bytes on the device of batches of `batch` bytes each: those that wait, and the one in use. 0 without
    /// [`with_device_prefetch`](Self::with_device_prefetch).
    pub fn device_prefetch_bytes(&self, batch: u64) -> u64 {
        self.copy.as_ref().map_or(0, |(_, depth)| batch.max(*depth) + batch)
    }

    /// Number of samples, over all replicas.
    pub fn samples(&self) -> usize {
        self.sampler.samples()
    }

    /// The sampler, which chooses the samples of each batch.
    pub fn sampler(&self) -> &Sampler {
        &self.sampler
    }

    /// The loader's configuration.
    pub fn config(&self) -> &LoaderConfig {
        &self.config
    }

    /// Batches in one epoch.
    pub fn batches(&self) -> usize {
        self.sampler.batches()
    }

    /// The batches of `epoch`, beginning with number `first` (0 for all of them). To resume in the middle of an epoch costs
    /// nothing. Dropping the iterator ends its threads. When the system has no thread left, the only item is [`Error::Thread`].
    pub fn epoch(&self, epoch: u64, first: usize) -> Batches<O> {
        let sampler = self.sampler.clone();
        let plan = move |index| BatchPlan { epoch, index, ids: sampler.ids(epoch, index) };
        let plans = (first..self.batches()).map(plan);
        let threads = (self.config.workers, self.config.prefetch);
        let sampler = Arc::new(self.sampler.clone());
        let shared = self.shared.clone();
        let workers = Workers::start(plans, threads, self.bytes.clone(), self.make.clone(), sampler, shared);
        let source = workers.and_then(|workers| match &self.copy {
            Some((copy, depth)) => DevicePrefetch::start(workers, copy.clone(), *depth).map(Source::DevicePrefetch),
            None => Ok(Source::Workers(workers)),
        });
        Batches::new(source.unwrap_or_else(|error| Source::Failed(Some(error))), self.shared.clone())
    }

    /// The first batch of `samples` samples, or of all if there are fewer, whatever the loader's own batches: to plan with.
    ///
    /// # Errors
    /// Those of [`budgeted`](Self::budgeted), and those of the samples.
    pub fn sample(&self, samples: usize) -> Result<Option<O>, Error> {
        let config = LoaderConfig { replica: Replica::ALONE, remainder: Remainder::Keep, ..self.config.clone() };
        let config = config.with_batch_size(samples.min(self.samples()).max(1));
        let sampler =
            Sampler::new(self.samples(), config.batch_size, config.order.clone(), config.remainder, config.replica)?;
        let first = (self.bytes)(&BatchPlan { epoch: 0, index: 0, ids: sampler.ids(0, 0) });
        let shared = Arc::new(Shared::new(&config, first, self.largest.1));
        let loader =
            Self { sampler, config, copy: None, largest: (Some(first), self.largest.1), shared, ..self.clone() };
        loader.epoch(0, 0).next().transpose()
    }

    /// The rest of the epoch in which `state` was taken by [`Sampler::state`].
    ///
    /// # Errors
    /// Those of [`Sampler::resume`].
    pub fn resume(&self, state: &LoaderState) -> Result<Batches<O>, Error> {
        let (epoch, batch) = self.sampler.resume(state)?;
        Ok(self.epoch(epoch, batch))
    }

    /// The statistics so far.
    pub fn stats(&self) -> LoaderStats {
        self.shared.stats()
    }

    /// The samples that could not be read so far, each once.
    pub fn bad_samples(&self) -> Vec<BadSampleReport> {
        self.shared.bad.reports()
    }

    /// The damaged samples whose pixels could be decoded so far, each once. [`Damage`](crate::Damage) decides whether they were delivered
    /// or are bad samples.
    pub fn repairable_samples(&self) -> Vec<BadSampleReport> {
        self.shared.bad.repairable()
    }

    /// A loader over a part of this loader's samples.
    pub(crate) fn slice(&self, part: Range<usize>) -> Self {
        Self { sampler: self.sampler.part(part), ..self.clone() }
    }
}
