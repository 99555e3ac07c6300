use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ahead::{Ahead, Finish};
use crate::batches::{Batches, Source};
use crate::worker::{Shared, Worker};
use crate::workers::Workers;
use crate::{BadSampleReport, BadSamples, Error, LoaderState, LoaderStats, Order, Remainder, Replica, Sampler};

/// How a [`Loader`] cuts and orders its samples, and how much it works ahead.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoaderConfig {
    /// Samples per batch, at least 1, over all replicas.
    pub batch_size: usize,
    /// The order of an epoch.
    pub order: Order,
    /// What becomes of the samples that do not fill a batch.
    pub remainder: Remainder,
    /// Which part of every batch is this loader's.
    #[serde(skip)]
    pub replica: Replica,
    /// Threads that make batches, 1 to 1024. The batches and their order do not depend on it.
    pub workers: usize,
    /// Batches in the making or waiting, at most; 1 to 1024.
    pub prefetch: usize,
    /// Bytes of host memory for batches in flight and images being decoded, where the loader knows them
    /// ([`Loader::budgeted`]). Batches get what `prefetch` of them and one more take, at most half; images the rest.
    pub budget: u64,
    /// What happens to samples that cannot be read.
    pub bad_samples: BadSamples,
}

impl LoaderConfig {
    /// Batches of `batch_size` in sequential order, the last one short; two workers, four batches ahead, 1 GiB;
    /// a bad sample is an error.
    pub fn new(batch_size: usize) -> Self {
        Self {
            batch_size,
            order: Order::Sequential,
            remainder: Remainder::Keep,
            replica: Replica::ALONE,
            workers: 2,
            prefetch: 4,
            budget: 1 << 30,
            bad_samples: BadSamples::FAIL,
        }
    }

    fn check(&self) -> Result<(), Error> {
        for (field, value) in [("workers", self.workers), ("prefetch", self.prefetch)] {
            if !(1..=MOST_THREADS).contains(&value) {
                return Err(Error::InvalidSetting { field, value: value.to_string(), expected: "from 1 to 1024" });
            }
        }
        Ok(())
    }
}

/// More threads, or batches ahead, serve nobody.
const MOST_THREADS: usize = 1024;

/// Which samples make a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchPlan {
    /// The epoch, counted from zero.
    pub epoch: u64,
    /// The batch within the epoch, counted from zero.
    pub index: usize,
    /// The samples, in the order they have in the batch.
    pub ids: Vec<usize>,
}

pub(crate) type Make<O> = Arc<dyn Fn(&BatchPlan, &Worker) -> Result<O, Error> + Send + Sync>;
pub(crate) type Bytes = Arc<dyn Fn(&BatchPlan) -> u64 + Send + Sync>;

/// Batches of samples, made by worker threads, in an order that is a function of (seed, epoch).
///
/// The loader knows nothing of what a sample is: it decides which ids make a batch and calls `make`.
/// A failure of `make`, a panic included, is delivered at the batch it belongs to.
///
/// Clones share the budget, the statistics and the list of bad samples.
pub struct Loader<O> {
    sampler: Sampler,
    config: LoaderConfig,
    bytes: Bytes,
    make: Make<O>,
    finish: Option<(Finish<O>, u64)>,
    shared: Arc<Shared>,
}

impl<O> Clone for Loader<O> {
    fn clone(&self) -> Self {
        Self {
            sampler: self.sampler.clone(),
            config: self.config.clone(),
            bytes: self.bytes.clone(),
            make: self.make.clone(),
            finish: self.finish.clone(),
            shared: self.shared.clone(),
        }
    }
}

impl<O: Send + 'static> Loader<O> {
    /// Batches of the samples `0..samples`, of a size that the loader does not know: only their number is bounded.
    ///
    /// # Errors
    /// Those of [`Sampler::new`], and [`Error::InvalidSetting`] for another zero in `config`.
    pub fn new(
        samples: usize,
        config: LoaderConfig,
        make: impl Fn(&BatchPlan) -> Result<O, Error> + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        Self::budgeted(samples, config, |_| 0, move |plan, _| make(plan))
    }

    /// Batches within a budget: `bytes` tells what a batch will take on the host, before it is made; `make` asks its
    /// [`Worker`] for whatever it takes for a while.
    ///
    /// The first batch says how the budget is divided between batches and images. Where later ones are larger, give the size
    /// of the largest with [`largest_batch`](Self::largest_batch); a batch that does not fit into the batches' part is not made, but
    /// [`Error::NoRoom`]. The loaders of several epochs at a time, and clones, share the budget; each has one batch in any case.
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
        let shared = Arc::new(Shared::new(&config, first)?);
        let (bytes, make): (Bytes, Make<O>) = (Arc::new(bytes), Arc::new(make));
        Ok(Self { sampler, config, bytes, make, finish: None, shared })
    }

    /// Divides the budget for batches of up to `bytes`. Statistics begin anew.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for a budget that is not twice as much.
    pub fn largest_batch(self, bytes: u64) -> Result<Self, Error> {
        Ok(Self { shared: Arc::new(Shared::new(&self.config, bytes)?), ..self })
    }

    /// Has every batch finished by `finish` on a thread of its own, ahead of the consumer, while no more than `depth`
    /// bytes of batches wait for it (one batch in any case): for copying to the device. On the host they count in the
    /// budget until they are done with, as all others.
    #[must_use]
    pub fn finished(mut self, depth: u64, finish: impl Fn(O) -> Result<O, Error> + Send + Sync + 'static) -> Self {
        self.finish = Some((Arc::new(finish), depth));
        self
    }

    /// Has the samples of a batch be of similar length; see [`Sampler::bucketed`].
    ///
    /// # Errors
    /// Those of [`Sampler::bucketed`].
    pub fn bucketed(self, lengths: impl Into<Arc<[u32]>>, pool: usize) -> Result<Self, Error> {
        Ok(Self { sampler: self.sampler.clone().bucketed(lengths, pool)?, ..self })
    }

    /// Bytes of finished batches that there can be at a time, of `batch` bytes each: those that wait, and the one in use.
    /// None without [`finished`](Self::finished).
    pub fn finished_bytes(&self, batch: u64) -> u64 {
        self.finish.as_ref().map_or(0, |(_, depth)| batch.max(*depth) + batch)
    }

    /// Number of samples, over all replicas.
    pub fn samples(&self) -> usize {
        self.sampler.samples()
    }

    /// Which samples make its batches.
    pub fn sampler(&self) -> &Sampler {
        &self.sampler
    }

    /// How it cuts and orders its samples.
    pub fn config(&self) -> &LoaderConfig {
        &self.config
    }

    /// Batches in one epoch.
    pub fn batches(&self) -> usize {
        self.sampler.batches()
    }

    /// The batches of `epoch`, beginning with number `first` (0 for all of them): to go on in the middle of
    /// an epoch costs nothing. Dropping the iterator ends its threads.
    pub fn epoch(&self, epoch: u64, first: usize) -> Batches<O> {
        let sampler = self.sampler.clone();
        let plan = move |index| BatchPlan { epoch, index, ids: sampler.ids(epoch, index) };
        let plans = (first..self.batches()).map(plan);
        let threads = (self.config.workers, self.config.prefetch);
        let sampler = Arc::new(self.sampler.clone());
        let shared = self.shared.clone();
        let workers = Workers::start(plans, threads, self.bytes.clone(), self.make.clone(), sampler, shared);
        let source = match &self.finish {
            Some((finish, depth)) => Source::Ahead(Ahead::start(workers, finish.clone(), *depth)),
            None => Source::Workers(workers),
        };
        Batches::new(source, self.shared.clone())
    }

    /// The batches that are left of the epoch in which `state` was taken, by [`Sampler::state`].
    ///
    /// # Errors
    /// Those of [`Sampler::resume`].
    pub fn resume(&self, state: &LoaderState) -> Result<Batches<O>, Error> {
        let (epoch, batch) = self.sampler.resume(state)?;
        Ok(self.epoch(epoch, batch))
    }

    /// What it has done so far.
    pub fn stats(&self) -> LoaderStats {
        self.shared.stats()
    }

    /// The samples that could not be read so far, each once.
    pub fn bad_samples(&self) -> Vec<BadSampleReport> {
        self.shared.bad_samples()
    }

    /// The same loader over a part of its samples.
    pub(crate) fn slice(&self, part: Range<usize>) -> Self {
        Self { sampler: self.sampler.part(part), ..self.clone() }
    }
}
