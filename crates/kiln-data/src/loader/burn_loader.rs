//! A loader as burn's `DataLoader`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use burn::data::dataloader::{DataLoader, DataLoaderIterator, Progress};
use burn::data::dataset::DatasetError;
use burn::tensor::Device;

use crate::error::Error;

use super::batch_loader::Loader;
use super::threads::Batches;

type ToDevice<H, O> = Arc<dyn Fn(H, &Device) -> O + Send + Sync>;

/// A [`Loader`] as burn's `DataLoader`, for burn's own `Learner`. Every call of `iter` is the next epoch: burn does not tell
/// a loader the number of the epoch. When its `Learner` resumes from a checkpoint, set the number with
/// [`starting_at`](Self::starting_at).
///
/// `H` is the batch on the host, `O` the model's input, made on the thread that iterates.
pub struct BurnLoader<H, O> {
    loader: Loader<H>,
    device: Device,
    to_device: ToDevice<H, O>,
    epoch: AtomicU64,
}

impl<H: Send + 'static, O: 'static> BurnLoader<H, O> {
    /// Adapts `loader`; `to_device` copies a batch.
    pub fn new(
        loader: Loader<H>,
        device: &Device,
        to_device: impl Fn(H, &Device) -> O + Send + Sync + 'static,
    ) -> Self {
        Self { loader, device: device.clone(), to_device: Arc::new(to_device), epoch: AtomicU64::new(0) }
    }

    /// Sets the first epoch that `iter` gives, counted from 0, to resume training. After burn's
    /// `SupervisedTraining::checkpoint(n)`, which counts from 1, it is n. Orders and augmentations are then those of an
    /// uninterrupted run.
    #[must_use]
    pub fn starting_at(self, epoch: u64) -> Self {
        Self { epoch: AtomicU64::new(epoch), ..self }
    }

    fn with(&self, loader: Loader<H>, device: &Device) -> Self {
        let epoch = AtomicU64::new(self.epoch.load(Relaxed));
        Self { loader, device: device.clone(), to_device: self.to_device.clone(), epoch }
    }
}

impl<H: Send + 'static, O: 'static> DataLoader<O> for BurnLoader<H, O> {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<O> + 'a> {
        let epoch = self.epoch.fetch_add(1, Relaxed);
        Box::new(Epoch { batches: self.loader.epoch(epoch, 0), from: self, taken: 0 })
    }

    fn num_items(&self) -> usize {
        self.loader.samples()
    }

    fn to_device(&self, device: &Device) -> Arc<dyn DataLoader<O>> {
        Arc::new(self.with(self.loader.clone(), device))
    }

    fn slice(&self, start: usize, end: usize) -> Arc<dyn DataLoader<O>> {
        Arc::new(self.with(self.loader.slice(start..end), &self.device))
    }
}

struct Epoch<'a, H, O> {
    batches: Batches<H>,
    from: &'a BurnLoader<H, O>,
    taken: usize,
}

impl<H: Send + 'static, O> Iterator for Epoch<'_, H, O> {
    type Item = Result<O, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = loop {
            let batch = self.batches.next()?;
            self.taken += 1;
            // The policy skips bad samples, and the loader's list reports them.
            if !matches!(batch, Err(Error::NothingLeft { .. })) {
                break batch;
            }
        };
        Some(batch.map(|batch| (self.from.to_device)(batch, &self.from.device)).map_err(DatasetError::new))
    }
}

impl<H: Send + 'static, O> DataLoaderIterator<O> for Epoch<'_, H, O> {
    fn progress(&self) -> Progress {
        // burn expects items out of `num_items`.
        let loader = &self.from.loader;
        Progress::new(loader.sampler().samples_in(self.taken), loader.samples(), Some("items".to_owned()))
    }
}
