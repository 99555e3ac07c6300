//! The settings of a loader, and the samples of one batch.

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::order::{Order, Remainder, Replica};

use super::bad_samples::BadSamples;

/// How a [`Loader`](crate::Loader) divides its samples into batches, orders them, and how far it works ahead.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct LoaderConfig {
    /// Samples per batch, at least 1, over all replicas.
    pub batch_size: usize,
    /// The order of an epoch.
    pub order: Order,
    /// The policy for the samples that do not fill a batch.
    pub remainder: Remainder,
    /// The replica whose part of every batch is loaded.
    #[serde(skip)]
    pub replica: Replica,
    /// Threads that make batches, 1 to 1024. The batches and their order do not depend on it.
    pub workers: usize,
    /// The most batches in the making or waiting, 1 to 1024.
    pub prefetch: usize,
    /// Bytes of host memory for batches in flight and images being decoded, where the loader knows them
    /// ([`Loader::budgeted`](crate::Loader::budgeted)). Batches get the bytes of `prefetch + 1` batches, at most half of
    /// the budget; images get the rest.
    pub budget: u64,
    /// The policy for samples that cannot be read.
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

    /// Sets the samples per batch.
    #[must_use]
    pub fn with_batch_size(self, batch_size: usize) -> Self {
        Self { batch_size, ..self }
    }

    /// Sets the order of an epoch.
    #[must_use]
    pub fn with_order(self, order: Order) -> Self {
        Self { order, ..self }
    }

    /// Sets the policy for the samples that do not fill a batch.
    #[must_use]
    pub fn with_remainder(self, remainder: Remainder) -> Self {
        Self { remainder, ..self }
    }

    /// Sets the replica whose part of every batch is loaded.
    #[must_use]
    pub fn with_replica(self, replica: Replica) -> Self {
        Self { replica, ..self }
    }

    /// Sets the number of threads that make batches.
    #[must_use]
    pub fn with_workers(self, workers: usize) -> Self {
        Self { workers, ..self }
    }

    /// Sets the most batches in the making or waiting.
    #[must_use]
    pub fn with_prefetch(self, prefetch: usize) -> Self {
        Self { prefetch, ..self }
    }

    /// Sets the most bytes of host memory.
    #[must_use]
    pub fn with_budget(self, budget: u64) -> Self {
        Self { budget, ..self }
    }

    /// Sets the policy for samples that cannot be read.
    #[must_use]
    pub fn with_bad_samples(self, bad_samples: BadSamples) -> Self {
        Self { bad_samples, ..self }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        for (field, value) in [("workers", self.workers), ("prefetch", self.prefetch)] {
            if !(1..=MOST_THREADS).contains(&value) {
                return Err(Error::InvalidSetting {
                    name: field,
                    value: value.to_string(),
                    expected: "from 1 to 1024",
                });
            }
        }
        Ok(())
    }
}

/// The most threads, and the most batches ahead: more do not make a loader faster.
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
