use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ahead::{Ahead, Finish};
use crate::batches::{Batches, Source};
use crate::worker::{Shared, Worker};
use crate::workers::Workers;
use crate::{BadSampleReport, BadSamples, Error, LoaderStats, Order};

/// How a [`Loader`] cuts and orders its samples, and how much it works ahead.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoaderConfig {
    /// Samples per batch, at least 1.
    pub batch_size: usize,
    /// The order of an epoch.
    pub order: Order,
    /// Leave out a last batch that would be short.
    pub drop_last: bool,
    /// Threads that make batches, at least 1. The batches and their order do not depend on it.
    pub workers: usize,
    /// Batches in the making or waiting, at most; at least 1.
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
            drop_last: false,
            workers: 2,
            prefetch: 4,
            budget: 1 << 30,
            bad_samples: BadSamples::FAIL,
        }
    }

    fn check(&self) -> Result<(), Error> {
        for (field, value) in [("batch size", self.batch_size), ("workers", self.workers), ("prefetch", self.prefetch)]
        {
            if value == 0 {
                return Err(Error::InvalidSetting { field, value: "0".into(), expected: "at least 1" });
            }
        }
        Ok(())
    }
}

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
    samples: Range<usize>,
    config: LoaderConfig,
    bytes: Bytes,
    make: Make<O>,
    finish: Option<(Finish<O>, u64)>,
    shared: Arc<Shared>,
}

impl<O> Clone for Loader<O> {
    fn clone(&self) -> Self {
        Self {
            samples: self.samples.clone(),
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
    /// [`Error::InvalidSetting`] for a zero in `config`, no samples, or a batch size above them.
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
    /// # Errors
    /// Those of [`new`](Self::new), and [`Error::InvalidSetting`] for a budget that is not twice the first batch.
    pub fn budgeted(
        samples: usize,
        config: LoaderConfig,
        bytes: impl Fn(&BatchPlan) -> u64 + Send + Sync + 'static,
        make: impl Fn(&BatchPlan, &Worker) -> Result<O, Error> + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        config.check()?;
        if samples == 0 {
            return Err(Error::InvalidSetting { field: "samples", value: "0".into(), expected: "at least 1" });
        }
        if config.batch_size > samples {
            let value = format!("{}, with {samples} samples", config.batch_size);
            return Err(Error::InvalidSetting {
                field: "batch size",
                value,
                expected: "at most the number of samples",
            });
        }
        let first = bytes(&plan(&(0..samples), &config, 0, 0));
        if first > config.budget / 2 {
            let value = format!("{} bytes, with batches of {first}", config.budget);
            return Err(Error::InvalidSetting { field: "budget", value, expected: "at least two batches" });
        }
        let shared = Arc::new(Shared::new(samples, &config, first));
        let (bytes, make): (Bytes, Make<O>) = (Arc::new(bytes), Arc::new(make));
        Ok(Self { samples: 0..samples, config, bytes, make, finish: None, shared })
    }

    /// Has every batch finished by `finish` on a thread of its own, ahead of the consumer, while no more than `depth`
    /// bytes of batches wait for it (one batch in any case): for copying to the device.
    #[must_use]
    pub fn finished(mut self, depth: u64, finish: impl Fn(O) -> Result<O, Error> + Send + Sync + 'static) -> Self {
        self.finish = Some((Arc::new(finish), depth));
        self
    }

    /// Number of samples.
    pub fn samples(&self) -> usize {
        self.samples.len()
    }

    /// How it cuts and orders its samples.
    pub fn config(&self) -> &LoaderConfig {
        &self.config
    }

    /// Batches in one epoch.
    pub fn batches(&self) -> usize {
        match self.config.drop_last {
            true => self.samples.len() / self.config.batch_size,
            false => self.samples.len().div_ceil(self.config.batch_size),
        }
    }

    /// Samples in the first `batches` batches of an epoch.
    pub(crate) fn samples_in(&self, batches: usize) -> usize {
        (batches * self.config.batch_size).min(self.samples.len())
    }

    /// The batches of `epoch`, beginning with number `first` (0 for all of them): to go on in the middle of
    /// an epoch costs nothing. Dropping the iterator ends its threads.
    pub fn epoch(&self, epoch: u64, first: usize) -> Batches<O> {
        let this = self.clone();
        let plans = (first..self.batches()).map(move |index| plan(&this.samples, &this.config, epoch, index));
        let threads = (self.config.workers, self.config.prefetch);
        let workers = Workers::start(plans, threads, self.bytes.clone(), self.make.clone(), self.shared.clone());
        let source = match &self.finish {
            Some((finish, depth)) => Source::Ahead(Ahead::start(workers, finish.clone(), *depth)),
            None => Source::Workers(workers),
        };
        Batches::new(source, self.shared.clone())
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
        let start = self.samples.start;
        Self { samples: start + part.start..start + part.end, ..self.clone() }
    }
}

fn plan(samples: &Range<usize>, config: &LoaderConfig, epoch: u64, index: usize) -> BatchPlan {
    let order = config.order.permutation(samples.len(), epoch);
    let from = index * config.batch_size;
    let to = (from + config.batch_size).min(samples.len());
    let ids = (from..to).map(|position| samples.start + order.at(position)).collect();
    BatchPlan { epoch, index, ids }
}
