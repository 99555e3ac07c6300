//! Where batches come from: kiln-data's loaders, burn's data loaders, and batches in memory.

use std::sync::Arc;

use burn::data::dataloader::DataLoader;
use kiln_data::{Loader, LoaderStats, TrainTest};

use crate::batch::Batch;
use crate::error::Error;

/// The batches of one epoch. An error ends the run, except [`NothingLeft`](kiln_data::Error::NothingLeft): a batch without a readable
/// sample is skipped.
pub type Epoch<'a, B> = Box<dyn Iterator<Item = Result<B, Error>> + 'a>;

/// Batches in epochs.
///
/// A resumed run asks for the rest of its epoch. It continues with the same numbers if [`epoch`](Self::epoch) returns the same batches
/// for the same arguments, as [`Loader`] does.
pub trait BatchSource {
    /// A batch.
    type Batch: Batch;

    /// Batches of an epoch.
    fn batches(&self) -> usize;

    /// Samples of the data set. A checkpoint notes the number, so that a run does not silently continue with other data.
    fn samples(&self) -> usize;

    /// The batches of epoch number `epoch` from batch number `first` on, both counted from zero.
    fn epoch(&self, epoch: u64, first: usize) -> Epoch<'_, Self::Batch>;

    /// What loading has done so far, if the source counts it. The counts never fall.
    fn stats(&self) -> Option<LoaderStats> {
        None
    }
}

impl<B: Batch> BatchSource for Loader<B> {
    type Batch = B;

    fn batches(&self) -> usize {
        self.batches()
    }

    fn samples(&self) -> usize {
        self.samples()
    }

    fn epoch(&self, epoch: u64, first: usize) -> Epoch<'_, B> {
        Box::new(self.epoch(epoch, first).map(|batch| batch.map_err(Error::Data)))
    }

    fn stats(&self) -> Option<LoaderStats> {
        Some(self.stats())
    }
}

/// Batches in memory, the same ones in every epoch.
impl<B: Batch + Clone> BatchSource for [B] {
    type Batch = B;

    fn batches(&self) -> usize {
        self.len()
    }

    fn samples(&self) -> usize {
        self.iter().map(Batch::len).sum()
    }

    fn epoch(&self, _: u64, first: usize) -> Epoch<'_, B> {
        Box::new(self.iter().skip(first).cloned().map(Ok))
    }
}

/// Batches in memory, the same ones in every epoch.
impl<B: Batch + Clone> BatchSource for Vec<B> {
    type Batch = B;

    fn batches(&self) -> usize {
        self.as_slice().batches()
    }

    fn samples(&self) -> usize {
        self.as_slice().samples()
    }

    fn epoch(&self, epoch: u64, first: usize) -> Epoch<'_, B> {
        self.as_slice().epoch(epoch, first)
    }
}

/// A data loader of burn. Its batches should be on the host's device.
///
/// burn's loaders shuffle by a random state of their own, so that a resumed run takes the rest of its epoch in a new order. Use
/// kiln-data's [`Loader`] for runs that must continue with the same numbers.
pub struct BurnBatches<B> {
    loader: Arc<dyn DataLoader<B>>,
    batch_size: usize,
}

impl<B: Batch> BurnBatches<B> {
    /// The batches of `loader`, which was built with `batch_size`.
    pub fn new(loader: Arc<dyn DataLoader<B>>, batch_size: usize) -> Self {
        Self { loader, batch_size }
    }
}

impl<B: Batch> BatchSource for BurnBatches<B> {
    type Batch = B;

    fn batches(&self) -> usize {
        self.loader.num_items().div_ceil(self.batch_size.max(1))
    }

    fn samples(&self) -> usize {
        self.loader.num_items()
    }

    fn epoch(&self, _: u64, first: usize) -> Epoch<'_, B> {
        let read = |batch: Result<B, burn::data::dataset::DatasetError>| {
            batch.map_err(|error| Error::BatchSource { reason: error.to_string() })
        };
        Box::new(self.loader.iter().skip(first).map(read))
    }
}

/// Data to train on, with or without a part to evaluate on: any [`BatchSource`], or a [`TrainTest`] of two.
pub trait TrainingData {
    /// A batch.
    type Batch: Batch;

    /// The batches to train on.
    fn train(&self) -> &dyn BatchSource<Batch = Self::Batch>;

    /// The batches to evaluate on.
    fn test(&self) -> Option<&dyn BatchSource<Batch = Self::Batch>>;
}

impl<S: BatchSource> TrainingData for S {
    type Batch = S::Batch;

    fn train(&self) -> &dyn BatchSource<Batch = S::Batch> {
        self
    }

    fn test(&self) -> Option<&dyn BatchSource<Batch = S::Batch>> {
        None
    }
}

impl<S: BatchSource> TrainingData for TrainTest<S> {
    type Batch = S::Batch;

    fn train(&self) -> &dyn BatchSource<Batch = S::Batch> {
        &self.train
    }

    fn test(&self) -> Option<&dyn BatchSource<Batch = S::Batch>> {
        Some(&self.test)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_in_memory_are_the_same_in_every_epoch() {
        let batches = vec![vec![1, 2], vec![3]];
        assert_eq!((batches.batches(), BatchSource::samples(&batches)), (2, 3));
        for epoch in 0..2 {
            let rest: Vec<_> = batches.epoch(epoch, 1).map(Result::unwrap).collect();
            assert_eq!(rest, [vec![3]]);
        }
        assert!(TrainingData::test(&batches).is_none());
    }
}
