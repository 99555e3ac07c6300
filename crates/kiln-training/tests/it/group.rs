//! Runs of several replicas in threads, compared with the run on one replica.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use burn::module::Module;
use burn::optim::ModuleOptimizer;
use burn::tensor::Device;
use burn_pack::Reader;
use kiln_parallel::{Communicator, Local};
use kiln_training::{Batch, OptimizerConfig, StepReport, Task, TrainerBuilder};

use crate::support::{Ids, Net, Settings, Snapshot, Watched, builder, numbers, settings};

/// Samples of a micro-batch; each replica has one.
pub(crate) const MICRO: usize = 2;

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

/// A run in micro-batches of [`MICRO`] samples.
pub(crate) struct Case<T: Task> {
    pub(crate) name: &'static str,
    pub(crate) task: fn() -> T,
    pub(crate) init: fn(&Device) -> T::Model,
    pub(crate) optimizer: OptimizerConfig,
    pub(crate) adjust: fn(Settings) -> Settings,
}

/// What one replica has at the end of a run.
pub(crate) struct Ended {
    pub(crate) reports: Vec<StepReport>,
    pub(crate) model: Model,
    /// Bytes of the optimizer's state on this replica, before the last step.
    pub(crate) state_bytes: usize,
    /// Everything, where this replica saves.
    pub(crate) snapshot: Option<Snapshot>,
}

impl Case<Ids<Net>> {
    /// Batch-norm behind the first layer, and dropout.
    pub(crate) fn net(optimizer: OptimizerConfig) -> Self {
        let init = |_: &Device| Net::new(&[8, 16, 16], true, 0.2);
        Self { name: "a net with batch-norm and dropout", task: Ids::net, init, optimizer, adjust: |settings| settings }
    }
}

impl<T: Task<Batch: Sync>> Case<T> {
    /// Returns the case with settings that `adjust` has changed.
    pub(crate) fn with(self, adjust: fn(Settings) -> Settings) -> Self {
        Self { adjust, ..self }
    }

    /// A builder on one replica, or on one of several.
    pub(crate) fn builder(&self, communicator: Option<Arc<dyn Communicator>>, shards: bool) -> TrainerBuilder<'_, T> {
        let micro_batch = Settings { micro_batch: Some(MICRO), ..settings(self.optimizer) };
        let builder = builder((self.task)(), self.init, &(self.adjust)(micro_batch));
        let builder = match communicator {
            Some(communicator) => builder.with_replicas(communicator),
            None => builder,
        };
        if shards { builder.with_sharded_optimizer(true) } else { builder }
    }

    /// Takes a step on each batch, with one replica.
    pub(crate) fn alone(&self, batches: &[T::Batch]) -> Ended {
        ended(self.builder(None, false), batches, |_| {}, |trainer, batch| trainer.step(batch).unwrap())
    }

    /// Takes a step on each batch, with several replicas, each of which has a micro-batch of every batch.
    pub(crate) fn on(&self, replicas: usize, shards: bool, batches: &[T::Batch]) -> Vec<Ended> {
        self.watched(replicas, shards, batches, |_, _| {})
    }

    /// Takes steps as [`on`](Self::on) does, with trainers that `watch` has changed.
    pub(crate) fn watched(
        &self,
        replicas: usize,
        shards: bool,
        batches: &[T::Batch],
        watch: impl Fn(usize, &mut Watched<T>) + Sync,
    ) -> Vec<Ended> {
        let each = |communicator: Arc<dyn Communicator>| {
            let rank = communicator.rank();
            let builder = self.builder(Some(communicator), shards);
            let take = |trainer: &mut Watched<T>, batch: &T::Batch| trainer.step(&part(batch, rank, replicas)).unwrap();
            ended(builder, batches, |trainer| watch(rank, trainer), take)
        };
        on_replicas(replicas, each).into_iter().map(|ended| ended.unwrap()).collect()
    }
}

/// The part of a batch that a replica has: [`MICRO`] samples, or as many times that as make all of it.
pub(crate) fn part<B: Batch>(batch: &B, rank: usize, replicas: usize) -> B {
    let each = batch.len().div_ceil(MICRO * replicas) * MICRO;
    batch.slice((rank * each).min(batch.len())..((rank + 1) * each).min(batch.len()))
}

fn ended<T: Task>(
    builder: TrainerBuilder<'_, T>,
    batches: &[T::Batch],
    watch: impl FnOnce(&mut Watched<T>),
    mut step: impl FnMut(&mut Watched<T>, &T::Batch) -> StepReport,
) -> Ended {
    let state_bytes = Rc::new(Cell::new(0));
    let seen = state_bytes.clone();
    let look = move |_, _: &T::Model, optimizer: &ModuleOptimizer| {
        seen.set(optimizer.into_bytes().unwrap().len());
        Ok::<_, Infallible>(None)
    };
    let mut trainer = Watched::build(builder.with_model_edit(look), &batches[0]);
    watch(&mut trainer);
    let reports = batches.iter().map(|batch| step(&mut trainer, batch)).collect();
    let model = model_of(trainer.model());
    Ended { reports, model, state_bytes: state_bytes.get(), snapshot: Snapshot::on_first(&trainer) }
}

/// Parameters and running statistics by name, without ids: those of running statistics differ between replicas.
pub(crate) type Model = BTreeMap<String, Vec<u8>>;

pub(crate) fn model_of(model: &impl Module) -> Model {
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

/// Asserts that all replicas have equal models and reports, and that the first one has `expected` with the same reports.
pub(crate) fn assert_all_same(replicas: &[Ended], expected: &Ended, context: &str) {
    for (rank, replica) in replicas.iter().enumerate() {
        assert_eq!(all_numbers(&replica.reports), all_numbers(&expected.reports), "{context}, replica {rank}");
        assert!(replica.model == replicas[0].model, "{context}: the model of replica {rank} differs");
        assert_eq!(replica.snapshot.is_some(), rank == 0, "{context}: the first replica writes");
    }
    let snapshot = replicas[0].snapshot.as_ref().unwrap();
    snapshot.assert_same(expected.snapshot.as_ref().unwrap(), context);
}
