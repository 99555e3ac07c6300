//! The data of a run, whose batches are counted and timed while they are read.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use kiln_data::LoaderStats;
use kiln_training::{Batch, BatchSource, Epoch, TrainingData};

use crate::progress::Progress;

/// What loading did for the steps of this process so far.
pub(crate) type Loaded = Rc<RefCell<LoaderStats>>;

/// The data of a run, with a bar for each evaluation.
pub struct WatchedData<'a, B> {
    train: Timed<'a, B>,
    test: Option<Watched<'a, B>>,
}

impl<'a, B: Batch> WatchedData<'a, B> {
    /// Watches `data`. What its loader did before is not counted.
    pub fn new<D: TrainingData<Batch = B> + ?Sized>(data: &'a D, progress: &Progress) -> Self {
        let source = data.train();
        let before = source.stats();
        let train = Timed { source, before, loaded: Rc::default() };
        Self { train, test: data.test().map(|source| Watched::new(source, progress)) }
    }

    pub(crate) fn loaded(&self) -> Loaded {
        self.train.loaded.clone()
    }
}

impl<B: Batch> TrainingData for WatchedData<'_, B> {
    type Batch = B;

    fn train(&self) -> &dyn BatchSource<Batch = B> {
        &self.train
    }

    fn test(&self) -> Option<&dyn BatchSource<Batch = B>> {
        Some(self.test.as_ref()?)
    }
}

/// Batches to train on. Of a source without statistics of its own, samples are counted, and the time that steps wait for them.
struct Timed<'a, B> {
    source: &'a dyn BatchSource<Batch = B>,
    before: Option<LoaderStats>,
    loaded: Loaded,
}

impl<B: Batch> BatchSource for Timed<'_, B> {
    type Batch = B;

    fn batches(&self) -> usize {
        self.source.batches()
    }

    fn samples(&self) -> usize {
        self.source.samples()
    }

    fn epoch(&self, epoch: u64, first: usize) -> Epoch<'_, B> {
        let mut batches = self.source.epoch(epoch, first);
        let mut asked = Instant::now();
        Box::new(std::iter::from_fn(move || {
            let used = asked.elapsed();
            asked = Instant::now();
            let batch = batches.next();
            let mut loaded = self.loaded.borrow_mut();
            match (self.source.stats(), &self.before) {
                (Some(now), Some(before)) if now.samples >= before.samples => *loaded = since(before, &now),
                _ => {
                    if let Some(batch) = &batch {
                        loaded.samples += batch.as_ref().map_or(0, Batch::len) as u64;
                        loaded.batches += 1;
                    }
                    loaded.waited_seconds += asked.elapsed().as_secs_f64();
                    loaded.used_seconds += used.as_secs_f64();
                }
            }
            asked = Instant::now();
            batch
        }))
    }
}

/// The loader's work for the steps. `before` includes the batch that steps were recorded with; its bad samples count.
fn since(before: &LoaderStats, now: &LoaderStats) -> LoaderStats {
    let (bad_samples, repairable_samples) = (now.bad_samples, now.repairable_samples);
    LoaderStats { bad_samples, repairable_samples, ..now.since(before) }
}

/// Batches to evaluate on, with a bar.
pub struct Watched<'a, B> {
    source: &'a dyn BatchSource<Batch = B>,
    progress: Progress,
}

impl<'a, B: Batch> Watched<'a, B> {
    /// The batches of `source`.
    pub fn new(source: &'a dyn BatchSource<Batch = B>, progress: &Progress) -> Self {
        Self { source, progress: progress.clone() }
    }
}

impl<B: Batch> BatchSource for Watched<'_, B> {
    type Batch = B;

    fn batches(&self) -> usize {
        self.source.batches()
    }

    fn samples(&self) -> usize {
        self.source.samples()
    }

    fn epoch(&self, epoch: u64, first: usize) -> Epoch<'_, B> {
        let bar = self.progress.evaluation(self.batches());
        Box::new(self.source.epoch(epoch, first).inspect(move |_| bar.inc(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_counted_where_a_source_has_no_statistics() {
        let batches = vec![vec![1, 2], vec![3]];
        let watched = WatchedData::new(&batches, &Progress::new(false));
        assert_eq!(watched.train().epoch(0, 1).count(), 1);
        assert_eq!(watched.train().epoch(1, 0).count(), 2);
        let loaded = *watched.loaded().borrow();
        assert_eq!((loaded.samples, loaded.batches), (4, 3));
        assert!(loaded.waited_seconds + loaded.used_seconds > 0.0 && watched.test().is_none());
    }
}
