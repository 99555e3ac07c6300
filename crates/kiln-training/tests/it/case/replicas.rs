//! Several replicas in threads, the part of a batch that each has, and what must be equal on all.

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use burn::module::Module;
use burn_pack::Reader;
use kiln_parallel::{Communicator, Local};
use kiln_training::{Batch, BatchSource, Epoch, StepReport};

use crate::support::numbers;

/// A replica that waits longer ends with an error, so that no test hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs `work` on each of `replicas`, in a thread of its own; returns what each returned or panicked with, in the order of the ranks.
pub(crate) fn on_replicas<R: Send>(
    replicas: usize,
    work: impl Fn(Arc<dyn Communicator>) -> R + Sync,
) -> Vec<thread::Result<R>> {
    let group = Local::group(replicas).into_iter().map(|replica| replica.with_time_limit(LIMIT));
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = group.map(|replica| scope.spawn(move || work(Arc::new(replica)))).collect();
        threads.into_iter().map(thread::ScopedJoinHandle::join).collect()
    })
}

/// As [`on_replicas`], where none panics.
pub(crate) fn on_all<R: Send>(replicas: usize, work: impl Fn(Arc<dyn Communicator>) -> R + Sync) -> Vec<R> {
    let ended = on_replicas(replicas, work).into_iter();
    ended.map(|ended| ended.unwrap_or_else(|panic| resume_unwind(panic))).collect()
}

/// The part of a batch that a replica has: a micro-batch, or as many as make all of it.
pub(crate) fn part<B: Batch>(batch: &B, micro_batch: usize, rank: usize, replicas: usize) -> B {
    let each = batch.len().div_ceil(micro_batch * replicas) * micro_batch;
    batch.slice((rank * each).min(batch.len())..((rank + 1) * each).min(batch.len()))
}

/// A replica's parts of the batches of an epoch of `samples` samples.
pub(crate) struct Epochs<B> {
    pub(crate) batches: Vec<B>,
    pub(crate) samples: usize,
}

impl<B: Batch + Clone> BatchSource for Epochs<B> {
    type Batch = B;

    fn batches(&self) -> usize {
        self.batches.len()
    }

    fn samples(&self) -> usize {
        self.samples
    }

    fn epoch(&self, _: u64, first: usize) -> Epoch<'_, B> {
        Box::new(self.batches[first..].iter().cloned().map(Ok))
    }
}

/// Parameters and running statistics by name, without ids: those of running statistics differ between replicas.
pub(crate) type ModelBytes = BTreeMap<String, Vec<u8>>;

pub(crate) fn bytes_of(model: &impl Module) -> ModelBytes {
    // `valid` folds the running statistics of all threads into the value that is recorded.
    let _ = model.valid();
    let record = model.clone().into_record().into_bytes().unwrap();
    let tensors = Reader::from_bytes(record).unwrap().into_tensors().unwrap();
    let parts = tensors.into_iter().map(|tensor| tensor.into_parts().unwrap());
    parts.map(|(name, _, _, _, bytes)| (name, bytes.to_vec())).collect()
}

/// The numbers of all reports, bit for bit.
pub(crate) fn all_numbers(reports: &[StepReport]) -> Vec<String> {
    reports.iter().map(numbers).collect()
}
