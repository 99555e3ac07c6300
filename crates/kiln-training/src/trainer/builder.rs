//! The settings of a trainer to be built; those of its memory are in `memory.rs`.

use std::fmt::Debug;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use burn::module::Reparameterizer;
use burn::optim::{AdamW, AdamWConfig, ModuleOptimizer};
use burn::tensor::Device;
use kiln_memory::{BackendProfile, CountingAllocator};
use kiln_optimizers::FusedAdamW;
use kiln_parallel::Communicator;
use kiln_precision::{Policy, Precision, Scaling};
use kiln_recovery::Patience;

use super::attach::{Attach, Edit, autocast, below_the_cast};
use super::events::{Event, Every, RunLength};
use super::freeze::frozen;
use super::trainer::{MakeOptimizer, Observer, Trainer};
use crate::batch_scaling::BatchScaling;
use crate::checkpoints::Checkpoints;
use crate::error::Error;
use crate::optimizer::OptimizerGroups;
use crate::planning::{Checkpointing, MemoryBudget, PlannedOptimizer};
use crate::progress::BestConfig;
use crate::schedule::Schedule;
use crate::stages::{StagesConfig, compute_in_stages};
use crate::task::Task;
use crate::transaction::{Boundary, Compute, Guard, compute_in_turn};

type Pause = Box<dyn FnMut(Duration) -> ControlFlow<()> + Send>;

/// Makes the model on a device.
type Init<'a, M> = Box<dyn Fn(&Device) -> Result<M, Error> + 'a>;

/// The settings of a trainer to be built. Made by [`Trainer::builder`], which has an example.
///
/// The defaults: f32, whole batches, no memory limit, AdamW with burn's settings, a constant learning rate of 1e-3, and one epoch.
pub struct TrainerBuilder<'a, T: Task> {
    pub(super) task: T,
    pub(super) init: Init<'a, T::Model>,
    pub(super) optimizer: MakeOptimizer<T::Model>,
    pub(super) schedule: Schedule,
    pub(super) batch_scaling: Option<BatchScaling>,
    pub(super) length: RunLength,
    pub(super) seed: u64,
    pub(super) max_norm: Option<f64>,
    pub(super) policy: Policy,
    pub(super) attach: Attach<T::Model>,
    pub(super) edit: Option<Edit<T::Model>>,
    pub(super) other_precisions: Vec<Precision>,
    pub(super) other_optimizers: Vec<AllowedOptimizer<T::Model>>,
    pub(super) compared_precisions: Vec<Precision>,
    pub(super) compared_optimizers: Vec<AllowedOptimizer<T::Model>>,
    pub(super) scaling: Option<Scaling>,
    pub(super) memory: Option<MemoryBudget>,
    pub(super) batch_size: Option<usize>,
    pub(super) micro_batch: Option<usize>,
    pub(super) checkpointing: Checkpointing,
    pub(super) keeps_plan: bool,
    pub(super) patience: Patience,
    pub(super) pause: Option<Pause>,
    pub(super) recovers: bool,
    pub(super) predicts: bool,
    pub(super) profile: Option<BackendProfile>,
    pub(super) loader_bytes: u64,
    pub(super) allocator: Option<&'static CountingAllocator>,
    pub(super) guard: Option<Guard>,
    pub(super) every: Every,
    pub(super) checkpoints: Option<Checkpoints>,
    pub(super) best: Option<BestConfig>,
    pub(super) takes_other_length: bool,
    pub(super) forgets_sizes: bool,
    pub(super) observer: Option<Observer>,
    pub(super) communicator: Option<Arc<dyn Communicator>>,
    pub(super) shards_optimizer: bool,
    pub(super) stages: Option<StagesConfig>,
    pub(super) compute: Compute<T>,
}

/// An optimizer that may replace the run's own.
pub(super) struct AllowedOptimizer<M> {
    pub(super) which: PlannedOptimizer,
    pub(super) make: MakeOptimizer<M>,
}

impl<T: Task> Trainer<T> {
    /// Begins a trainer for `task`, with the model that `init` makes on a device.
    ///
    /// ```
    /// use burn::nn::loss::{MseLoss, Reduction};
    /// use burn::nn::{Linear, LinearConfig};
    /// use burn::tensor::{Device, Tensor, TensorData};
    /// use kiln_training::{LossFn, MemoryBudget, Pass, Trainer};
    ///
    /// let task = LossFn::new(|pass: &Pass<'_, Linear>, (x, y): &(TensorData, TensorData)| {
    ///     let (x, y): (Tensor<2>, Tensor<2>) = (pass.input(x), pass.input(y));
    ///     MseLoss::new().forward(pass.model().forward(x), y, Reduction::Mean)
    /// });
    /// let x = TensorData::from([[0.0f32, 1.0], [1.0, 0.0], [1.0, 1.0]]);
    /// let y = TensorData::from([[2.0f32], [3.0], [5.0]]);
    /// let mut trainer = Trainer::builder(task, |device| LinearConfig::new(2, 1).init(device))
    ///     .with_memory(MemoryBudget::Bytes(64 << 20))
    ///     .with_schedule(0.05)
    ///     .with_steps(200)
    ///     .build(&Device::flex(), &(x.clone(), y.clone()))?;
    /// let first = trainer.step(&(x.clone(), y.clone()))?;
    /// let _ = trainer.fit(&vec![(x.clone(), y.clone())])?;
    /// assert!(trainer.evaluate(&vec![(x, y)])?.metrics[0].1 < 0.01 * first.loss);
    /// # Ok::<(), kiln_training::Error>(())
    /// ```
    pub fn builder<'a>(task: T, init: impl Fn(&Device) -> T::Model + 'a) -> TrainerBuilder<'a, T> {
        TrainerBuilder::new(task, Box::new(move |device| Ok(init(device))))
    }

    /// Begins a trainer for `task` as [`builder`](Self::builder) does, with an `init` that may fail. The trainer's `build` then ends with
    /// [`Error::Model`].
    pub fn try_builder<'a, E: std::error::Error + Send + Sync + 'static>(
        task: T,
        init: impl Fn(&Device) -> Result<T::Model, E> + 'a,
    ) -> TrainerBuilder<'a, T> {
        let init = move |device: &Device| init(device).map_err(|error| Error::Model(Box::new(error)));
        TrainerBuilder::new(task, Box::new(init))
    }
}

impl<'a, T: Task> TrainerBuilder<'a, T> {
    fn new(task: T, init: Init<'a, T::Model>) -> Self {
        Self {
            task,
            init,
            optimizer: Box::new(|_| {
                // Checkpoints note the name of burn's optimizer, whose state is the same.
                OptimizerGroups::from(FusedAdamW::from(AdamWConfig::new())).described(std::any::type_name::<AdamW>())
            }),
            schedule: Schedule::constant(1e-3),
            batch_scaling: None,
            length: RunLength::Epochs(1),
            seed: 0,
            max_norm: None,
            policy: Policy::default(),
            attach: autocast(),
            edit: None,
            other_precisions: vec![],
            other_optimizers: vec![],
            compared_precisions: vec![],
            compared_optimizers: vec![],
            scaling: None,
            memory: None,
            batch_size: None,
            micro_batch: None,
            checkpointing: Checkpointing::None,
            keeps_plan: false,
            patience: Patience::default(),
            pause: None,
            recovers: true,
            predicts: true,
            profile: None,
            loader_bytes: 0,
            allocator: None,
            guard: None,
            every: Every::epoch(),
            checkpoints: None,
            best: None,
            takes_other_length: false,
            forgets_sizes: false,
            observer: None,
            communicator: None,
            shards_optimizer: false,
            stages: None,
            compute: compute_in_turn::<T>,
        }
    }

    /// Uses one of burn's optimizers, or several for groups of parameters; see [`OptimizerGroups`].
    #[must_use]
    pub fn with_optimizer<O: Into<OptimizerGroups>>(self, optimizer: impl Fn(&T::Model) -> O + 'static) -> Self {
        Self { optimizer: Box::new(move |model| optimizer(model).into()), ..self }
    }

    /// Sets the learning rate over the run: a number, a [`ScheduleConfig`](crate::ScheduleConfig), or a [`Schedule`].
    #[must_use]
    pub fn with_schedule(self, schedule: impl Into<Schedule>) -> Self {
        Self { schedule: schedule.into(), ..self }
    }

    /// Interprets the schedule's rate as that of a base batch, and scales it to the effective batch: all samples of an update, over all
    /// replicas. Recovery makes micro-batches smaller, but changes neither the effective batch nor the rate.
    #[must_use]
    pub fn with_batch_scaling(self, scaling: impl Into<Option<BatchScaling>>) -> Self {
        Self { batch_scaling: scaling.into(), ..self }
    }

    /// Sets the length of the run to a number of steps.
    #[must_use]
    pub fn with_steps(self, steps: u64) -> Self {
        Self { length: RunLength::Steps(steps), ..self }
    }

    /// Sets the length of the run to a number of passes over the data.
    #[must_use]
    pub fn with_epochs(self, epochs: u64) -> Self {
        Self { length: RunLength::Epochs(epochs), ..self }
    }

    /// Derives all randomness of the run from `seed`, including the model's parameters if burn initialises them.
    #[must_use]
    pub fn with_seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Scales gradients down to the global norm `max_norm` if their norm is larger.
    #[must_use]
    pub fn with_clip_norm(self, max_norm: impl Into<Option<f64>>) -> Self {
        Self { max_norm: max_norm.into(), ..self }
    }

    /// Freezes the parameters at or below `paths`: they have no gradients, updates or optimizer state. A path names a whole module, such
    /// as `layer1` or `blocks.0`, or a parameter. The prediction of a step's memory accounts for it.
    ///
    /// Batch-norm below such a path still normalises each batch by the batch's own statistics, and its running statistics still follow
    /// the batches. PyTorch behaves in the same way for parameters without gradient in a module in training mode.
    ///
    /// [`build`](Self::build) ends with [`Error::UnknownPath`] for a path that no parameter has.
    #[must_use]
    pub fn with_frozen<P: Into<String>>(self, paths: impl IntoIterator<Item = P>) -> Self {
        let paths: Vec<String> = paths.into_iter().map(Into::into).collect();
        if paths.is_empty() {
            return self;
        }
        let init = self.init;
        Self { init: Box::new(move |device| frozen(init(device)?, &paths)), ..self }
    }

    /// Sets the precision of layers and parameters to `policy`.
    #[must_use]
    pub fn with_precision(self, policy: Policy) -> Self {
        Self { policy, ..self }
    }

    /// Attaches the result of `make` to the parameters of the plain model, below the cast of the precision policy: masks, adapters, fake
    /// quantisation, or several of them as a [`Nest`](kiln_compression::Nest). The prediction of a step's memory accounts for them, and
    /// checkpoints hold their state. Parameters that they freeze have no gradients and no optimizer state.
    ///
    /// A checkpoint notes the debug text of the result, and a run with another text does not resume from it.
    #[must_use]
    pub fn with_reparameterization<R, E>(self, make: impl Fn(&T::Model) -> Result<R, E> + 'static) -> Self
    where
        R: Reparameterizer + Debug,
        E: std::error::Error + Send + Sync + 'static,
    {
        Self { attach: below_the_cast(make), ..self }
    }

    /// Calls `edit` between steps to change the model and its optimizer, as gradual pruning does. If it returns `None`, they stay as they
    /// are. It gets the number of steps taken so far. Its result must depend only on that number, the model and the optimizer, so that an
    /// interrupted and resumed run has the same edits. It is called once for a step, even if the step is tried again.
    ///
    /// An edit that returns an error ends the step with [`Error::Edit`]. The run stays as it was, and the next step calls `edit` again.
    #[must_use]
    pub fn with_edit<E: std::error::Error + Send + Sync + 'static>(
        self,
        mut edit: impl FnMut(u64, &T::Model, &ModuleOptimizer) -> Result<Option<(T::Model, ModuleOptimizer)>, E> + 'static,
    ) -> Self {
        let edit: Edit<T::Model> = Box::new(move |step, model, optimizer| {
            edit(step, model, optimizer).map_err(|error| Error::Edit { step: step + 1, source: Box::new(error) })
        });
        Self { edit: Some(edit), ..self }
    }

    /// Scales the loss by `scaling` instead of the precision's default.
    #[must_use]
    pub fn with_scaling(self, scaling: impl Into<Option<Scaling>>) -> Self {
        Self { scaling: scaling.into(), ..self }
    }

    /// Sets the batch size to `samples`. The default is the number of samples in the batch that [`build`](Self::build) gets.
    #[must_use]
    pub fn with_batch_size(self, samples: usize) -> Self {
        Self { batch_size: Some(samples), ..self }
    }

    /// Allows a run to resume with another number of steps than it was saved with. Rates that depend on the number of steps are from then
    /// on those of a run that had the new number from its start.
    #[must_use]
    pub fn allowing_other_length(self) -> Self {
        Self { takes_other_length: true, ..self }
    }

    /// Resumes a run without its knowledge of micro-batches that fit. Use it if the micro-batch or the memory budget has changed.
    #[must_use]
    pub fn forgetting_sizes(self) -> Self {
        Self { forgets_sizes: true, ..self }
    }

    /// Calls `guard` at every boundary of a step. A failure that it returns is treated as a failure of the device.
    #[must_use]
    pub fn with_guard(
        self,
        guard: impl Fn(Boundary) -> Result<(), kiln_recovery::Failure> + Send + Sync + 'static,
    ) -> Self {
        Self { guard: Some(Box::new(guard)), ..self }
    }

    /// Sets times for evaluations and checkpoints in addition to the ends of epochs.
    #[must_use]
    pub fn with_every(self, every: Every) -> Self {
        Self { every, ..self }
    }

    /// Saves the run to `checkpoints`.
    #[must_use]
    pub fn with_checkpoints(self, checkpoints: Checkpoints) -> Self {
        Self { checkpoints: Some(checkpoints), ..self }
    }

    /// Judges the run by one of its metrics. The checkpoint with the best value is kept beside the newest ones ([`Checkpoints::best`]).
    /// If `config` says so, the run ends early when the value stops improving. An evaluation with a new best value saves a checkpoint.
    #[must_use]
    pub fn with_best(self, config: impl Into<Option<BestConfig>>) -> Self {
        Self { best: config.into(), ..self }
    }

    /// Calls `observer` with every event of [`Trainer::fit`]. The run stops when it returns `Break`.
    #[must_use]
    pub fn with_observer(self, observer: impl FnMut(&Event) -> ControlFlow<()> + 'static) -> Self {
        Self { observer: Some(Box::new(observer)), ..self }
    }

    /// Makes the trainer one of several replicas of a model, each of which computes a part of every batch. Each replica has a trainer of
    /// its own, in its own thread or process, built with the same settings. Its batches hold its part of the samples
    /// ([`LoaderConfig::with_replica`](kiln_data::LoaderConfig::with_replica)). Gradients are summed once a step, so that all replicas
    /// take the same step. With one micro-batch each, a step has the same bits as one on the whole batch in as many micro-batches.
    ///
    /// Only the first replica writes checkpoints; all replicas have the same checkpoint settings. A run resumes with any number of
    /// replicas. [`with_batch_size`](Self::with_batch_size) counts the samples of all replicas. If memory runs out on one replica, all
    /// try the step again with less. An error on one replica ends the run on all: the others learn of it in their next common operation.
    /// The group is then over, and the run continues from a checkpoint with new trainers.
    #[must_use]
    pub fn with_replicas(self, communicator: Arc<dyn Communicator>) -> Self {
        Self { communicator: Some(communicator), ..self }
    }

    /// Divides the optimizer's state among the replicas: each updates the parameters that it owns, and sends them to the others (ZeRO
    /// stage 1, Rajbhandari et al. 2020). The numbers stay the same. Checkpoints hold all of the state.
    #[must_use]
    pub fn sharding_optimizer(self) -> Self {
        Self { shards_optimizer: true, ..self }
    }

    /// Divides the blocks of the model's [chain](crate::Pass::chain) into stages, each of which works on another micro-batch at the same
    /// time (pipeline parallelism). Operations before the chain run in the first stage, operations after it in the last one. Each stage
    /// has a device, which holds the parameters and running statistics that the stage uses. A parameter that several stages use is on the
    /// device of the first one, and the model moves its value to the others (`weight.to_device(&x.device())`).
    ///
    /// A tensor with a gradient may reach the next stage only as a part of the chain's value; otherwise the step ends with
    /// [`Error::Bypassed`]. Tensors without a gradient, such as targets, move by [`Pass::to_device`](crate::Pass::to_device). Running
    /// statistics must be updated in one stage.
    ///
    /// Gradients, losses and running statistics have the same bits as without stages in the same micro-batches, under every schedule.
    /// There are two exceptions. In a model that draws random numbers each stage has its own seed, so that its masks differ, and stages
    /// take turns. If one stage uses a parameter several times, and another stage uses it too, its gradient is added up in another order.
    ///
    /// With `m` micro-batches, the share `(p - 1) / (m + p - 1)` of the time of `p` stages is idle. Without
    /// [`with_micro_batch`](Self::with_micro_batch) a batch is cut into two micro-batches for each stage. [`Trainer::stage_plan`] returns
    /// the predicted load of each stage.
    #[must_use]
    pub fn with_stages(self, stages: StagesConfig) -> Self
    where
        T: Sync,
        T::Model: Sync,
        T::Batch: Sync,
    {
        Self { stages: Some(stages), compute: compute_in_stages::<T>, ..self }
    }
}
