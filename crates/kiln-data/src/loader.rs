use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::batches::Batches;
use crate::{Error, Order};

/// How a [`Loader`] cuts and orders its samples, and how much it works ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
}

impl LoaderConfig {
    /// Batches of `batch_size` in sequential order, the last one short; two workers, four batches ahead.
    pub fn new(batch_size: usize) -> Self {
        Self { batch_size, order: Order::Sequential, drop_last: false, workers: 2, prefetch: 4 }
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

pub(crate) type Make<O> = Arc<dyn Fn(&BatchPlan) -> Result<O, Error> + Send + Sync>;

/// Batches of samples, made by worker threads, in an order that is a function of (seed, epoch).
///
/// The loader knows nothing of what a sample is: it decides which ids make a batch and calls `make`.
/// A failure of `make`, a panic included, is delivered at the batch it belongs to.
pub struct Loader<O> {
    samples: Range<usize>,
    config: LoaderConfig,
    make: Make<O>,
}

impl<O> Clone for Loader<O> {
    fn clone(&self) -> Self {
        Self { samples: self.samples.clone(), config: self.config, make: self.make.clone() }
    }
}

impl<O: Send + 'static> Loader<O> {
    /// Batches of the samples `0..samples`.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for a zero in `config`, no samples, or a batch size above them.
    pub fn new(
        samples: usize,
        config: LoaderConfig,
        make: impl Fn(&BatchPlan) -> Result<O, Error> + Send + Sync + 'static,
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
        Ok(Self { samples: 0..samples, config, make: Arc::new(make) })
    }

    /// Number of samples.
    pub fn samples(&self) -> usize {
        self.samples.len()
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
        let order = self.config.order.permutation(self.samples.len(), epoch);
        let plan = move |index: usize| {
            let from = index * this.config.batch_size;
            let to = (from + this.config.batch_size).min(this.samples.len());
            let ids = (from..to).map(|position| this.samples.start + order.at(position)).collect();
            BatchPlan { epoch, index, ids }
        };
        let plans = (first..self.batches()).map(plan);
        Batches::start(plans, self.config.workers, self.config.prefetch, self.make.clone())
    }

    /// The same loader over a part of its samples.
    pub(crate) fn slice(&self, part: Range<usize>) -> Self {
        let start = self.samples.start;
        Self { samples: start + part.start..start + part.end, ..self.clone() }
    }
}
