//! The builder of a trainer: its settings in groups, and functions and objects that no file can hold.

use std::fmt::Debug;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use burn::module::Reparameterizer;
use burn::optim::{AdamW, AdamWConfig, ModuleOptimizer};
use kiln_checkpointing::InitialValues;
use kiln_memory::HeapCounts;
use kiln_optimizers::FusedAdamW;
use kiln_parallel::Communicator;
use kiln_precision::{Policy, Precision};
use kiln_recovery::{Failure, Patience};

use super::attach::{Attach, Edit, below_the_cast, policy_alone};
use super::config::{CheckpointConfig, MemoryConfig, RunConfig};
use super::events::{Event, RunLength};
use super::initial::{Init, InitialModel};
use super::trainer::{MakeOptimizer, Observer, ignoring_model, made_by};
use crate::checkpoints::Checkpoints;
use crate::error::Error;
use crate::optimizer::OptimizerGroups;
use crate::planning::{MemoryBudget, PlannedOptimizer, Recompute};
use crate::schedule::Schedule;
use crate::stages::{StagesConfig, compute_in_stages};
use crate::task::Task;
use crate::transaction::{Boundary, Compute, Guard, compute_in_turn};

type Pause = Box<dyn FnMut(Duration) -> ControlFlow<()> + Send>;

/// Tells the bytes of the process that are in memory beside a step.
pub(super) type Process<'a> = Box<dyn Fn() -> Option<u64> + 'a>;

/// The settings of a trainer to be built. Made by [`Trainer::builder`](crate::Trainer::builder), which has an example.
///
/// Settings that are plain values are in three groups, which programs may also read from a file: [`run`](Self::run),
/// [`memory`](Self::memory) and [`checkpoints`](Self::checkpoints). The most common of them have a method of their own;
/// [`with`](Self::with) sets any. The defaults: f32, whole batches, no memory limit, AdamW with burn's settings, a constant learning rate of
/// 1e-3, and one epoch.
pub struct TrainerBuilder<'a, T: Task> {
    /// The run: its length, its seed, its batches, its precision.
    pub run: RunConfig,
    /// The memory of a step, and the response to a lack of memory.
    pub memory: MemoryConfig,
    /// Evaluations and checkpoints.
    pub checkpoints: CheckpointConfig,
    pub(super) task: T,
    pub(super) initial: InitialModel<'a, T::Model>,
    pub(super) schedule: Schedule,
    pub(super) optimizers: Optimizers<T::Model>,
    pub(super) attach: Attach<T::Model>,
    /// Whether something other than a policy's cast is attached.
    pub(super) attaches: bool,
    /// Whether it is attached before parameters are initialised.
    pub(super) attaches_early: bool,
    pub(super) edit: Option<Edit<T::Model>>,
    pub(super) allocator: Option<&'static HeapCounts>,
    pub(super) process: Option<Process<'a>>,
    pub(super) parallel: Parallel<T>,
    pub(super) observers: Observers<T::Model>,
}

/// The optimizer of a run, and those that may replace it.
pub(super) struct Optimizers<M> {
    pub(super) own: MakeOptimizer<M>,
    pub(super) allowed: Vec<AllowedOptimizer<M>>,
    pub(super) compared: Vec<AllowedOptimizer<M>>,
}

/// An optimizer that may replace the run's own.
pub(super) struct AllowedOptimizer<M> {
    pub(super) which: PlannedOptimizer,
    pub(super) make: MakeOptimizer<M>,
}

/// The devices that a run is divided among.
pub(super) struct Parallel<T: Task> {
    pub(super) communicator: Option<Arc<dyn Communicator>>,
    pub(super) shards_optimizer: bool,
    pub(super) stages: Option<StagesConfig>,
    pub(super) compute: Compute<T>,
}

/// Functions of the caller.
pub(super) struct Observers<M> {
    pub(super) events: Vec<Observer<M>>,
    pub(super) guard: Option<Guard>,
    pub(super) pause: Option<Pause>,
}

impl<'a, T: Task> TrainerBuilder<'a, T> {
    pub(super) fn new(task: T, init: Init<'a, T::Model>) -> Self {
        // Checkpoints note the name of burn's optimizer, whose state is the same.
        let adamw =
            || OptimizerGroups::from(FusedAdamW::from(AdamWConfig::new())).described(std::any::type_name::<AdamW>());
        let compute = compute_in_turn::<T>;
        Self {
            run: RunConfig::default(),
            memory: MemoryConfig::default(),
            checkpoints: CheckpointConfig::default(),
            task,
            initial: InitialModel::new(init),
            schedule: Schedule::constant(1e-3),
            optimizers: Optimizers { own: made_by(move |_: &T::Model| adamw()), allowed: vec![], compared: vec![] },
            attach: policy_alone(),
            attaches: false,
            attaches_early: false,
            edit: None,
            allocator: None,
            process: None,
            parallel: Parallel { communicator: None, shards_optimizer: false, stages: None, compute },
            observers: Observers { events: vec![], guard: None, pause: None },
        }
    }

    /// Changes settings in the middle of a chain of calls.
    ///
    /// ```
    /// # use burn::nn::LinearConfig;
    /// # use burn::tensor::{Tensor, TensorData};
    /// # use kiln_training::{LossFn, Pass, Trainer};
    /// # let task = LossFn::new(|pass: &Pass<'_, burn::nn::Linear>, x: &TensorData| {
    /// #     let x: Tensor<2> = pass.input(x);
    /// #     pass.model().forward(x).mean()
    /// # });
    /// let builder = Trainer::builder(task, |device| LinearConfig::new(2, 1).init(device))
    ///     .with_steps(200)
    ///     .with(|settings| settings.run.frozen = vec!["bias".into()]);
    /// ```
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Sets the length of the run to a number of steps.
    #[must_use]
    pub fn with_steps(mut self, steps: u64) -> Self {
        self.run.length = RunLength::Steps(steps);
        self
    }

    /// Sets the length of the run to a number of passes over the data.
    #[must_use]
    pub fn with_epochs(mut self, epochs: u64) -> Self {
        self.run.length = RunLength::Epochs(epochs);
        self
    }

    /// Sets the [seed](RunConfig::seed).
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.run.seed = seed;
        self
    }

    /// Sets the [batch size](RunConfig::batch_size).
    #[must_use]
    pub fn with_batch_size(mut self, samples: usize) -> Self {
        self.run.batch_size = Some(samples);
        self
    }

    /// Sets the [norm that gradients are clipped to](RunConfig::clip_norm).
    #[must_use]
    pub fn with_clip_norm(mut self, norm: impl Into<Option<f64>>) -> Self {
        self.run.clip_norm = norm.into();
        self
    }

    /// Sets the [precision](RunConfig::precision) of layers and parameters.
    #[must_use]
    pub fn with_precision(mut self, policy: Policy) -> Self {
        self.run.precision = policy;
        self
    }

    /// Sets the [memory budget](MemoryConfig::budget) of a step.
    #[must_use]
    pub fn with_memory(mut self, budget: MemoryBudget) -> Self {
        self.memory.budget = Some(budget);
        self
    }

    /// Sets the most samples that are [on the device at once](MemoryConfig::micro_batch).
    #[must_use]
    pub fn with_micro_batch(mut self, samples: impl Into<Option<usize>>) -> Self {
        self.memory.micro_batch = samples.into();
        self
    }

    /// Sets the [blocks that are recomputed](MemoryConfig::recompute) in the backward pass.
    #[must_use]
    pub fn with_recompute(mut self, recompute: Recompute) -> Self {
        self.memory.recompute = recompute;
        self
    }

    /// Adds a [precision that is allowed](MemoryConfig::allowed_precisions) if a step does not fit in the run's own.
    #[must_use]
    pub fn with_allowed_precision(mut self, precision: Precision) -> Self {
        self.memory.allowed_precisions.push(precision);
        self
    }

    /// Sets whether the step is [recorded to predict its memory](MemoryConfig::prediction).
    #[must_use]
    pub fn with_prediction(mut self, prediction: bool) -> Self {
        self.memory.prediction = prediction;
        self
    }

    /// Sets whether a step is [tried again](MemoryConfig::recovery) if memory runs out.
    #[must_use]
    pub fn with_recovery(mut self, recovery: bool) -> Self {
        self.memory.recovery = recovery;
        self
    }

    /// Sets how long a batch [waits for memory](MemoryConfig::patience).
    #[must_use]
    pub fn with_patience(mut self, patience: Patience) -> Self {
        self.memory.patience = patience;
        self
    }

    /// Saves the run to [`checkpoints`](CheckpointConfig::directory).
    #[must_use]
    pub fn with_checkpoints(mut self, checkpoints: Checkpoints) -> Self {
        self.checkpoints.directory = Some(checkpoints);
        self
    }

    /// Uses one of burn's optimizers, or several for groups of parameters; see [`OptimizerGroups`].
    #[must_use]
    pub fn with_optimizer<O: Into<OptimizerGroups>>(self, optimizer: impl Fn(&T::Model) -> O + 'static) -> Self {
        let optimizers = Optimizers { own: made_by(optimizer), ..self.optimizers };
        Self { optimizers, ..self }
    }

    /// Allows another optimizer if a step does not fit into the memory with the run's own. Plans name it by `which`: a name stands for
    /// [`PlannedOptimizer::Other`] with its state on the device. It applies to stages and replicas too, which must all choose the same
    /// optimizer.
    ///
    /// [`PlannedOptimizer::OwnOnHost`] allows the run's own optimizer with its state in host memory. The numbers stay the same: on a GPU the
    /// faster of both that fits is taken. On the CPU device it changes nothing, because the device's memory is the host's. A run in stages
    /// or replicas keeps the state on its devices.
    #[must_use]
    pub fn with_allowed_optimizer<O: Into<OptimizerGroups>>(
        mut self,
        which: impl Into<PlannedOptimizer>,
        optimizer: impl Fn(&T::Model) -> O + 'static,
    ) -> Self {
        let make = made_by(optimizer);
        self.optimizers.allowed.push(AllowedOptimizer { which: which.into(), make });
        self
    }

    /// Also records the step with another optimizer, so that [`Trainer::remedies`](crate::Trainer::remedies) can predict its memory and
    /// time. Plans call it `name`. The run never uses it.
    #[must_use]
    pub fn with_compared_optimizer<O: Into<OptimizerGroups>>(
        mut self,
        name: impl Into<String>,
        optimizer: impl Fn(&T::Model) -> O + 'static,
    ) -> Self {
        let make = made_by(optimizer);
        let which = PlannedOptimizer::Other { name: name.into(), on_host: false };
        self.optimizers.compared.push(AllowedOptimizer { which, make });
        self
    }

    /// Sets the learning rate over the run: a number, a [`ScheduleConfig`](crate::ScheduleConfig), or a [`Schedule`].
    #[must_use]
    pub fn with_schedule(self, schedule: impl Into<Schedule>) -> Self {
        Self { schedule: schedule.into(), ..self }
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
        Self { attach: below_the_cast(make, false), attaches: true, ..self }
    }

    /// Works as [`with_reparameterization`](Self::with_reparameterization), and attaches before burn initialises parameters: for attachments that
    /// take the place of weights, as [`FourBits`](kiln_compression::FourBits) do, so that these weights are never in memory as a whole. Other frozen
    /// matrices, such as embeddings, are stored in the dtype that layers compute in.
    #[must_use]
    pub fn with_early_reparameterization<R, E>(self, make: impl Fn(&T::Model) -> Result<R, E> + 'static) -> Self
    where
        R: Reparameterizer + Debug,
        E: std::error::Error + Send + Sync + 'static,
    {
        Self { attach: below_the_cast(make, true), attaches: true, attaches_early: true, ..self }
    }

    /// Calls `edit` between steps to change the model and its optimizer, as gradual pruning does. If it returns `None`, they stay as they
    /// are. It gets the number of steps taken so far. Its result must depend only on that number, the model and the optimizer, so that an
    /// interrupted and resumed run has the same edits. It is called once for a step, even if the step is tried again.
    ///
    /// An edit that returns an error ends the step with [`Error::Edit`]. The run stays as it was, and the next step calls `edit` again.
    #[must_use]
    pub fn with_model_edit<E: std::error::Error + Send + Sync + 'static>(
        self,
        mut edit: impl FnMut(u64, &T::Model, &ModuleOptimizer) -> Result<Option<(T::Model, ModuleOptimizer)>, E> + 'static,
    ) -> Self {
        let edit: Edit<T::Model> = Box::new(move |step, model, optimizer| {
            edit(step, model, optimizer).map_err(|error| Error::Edit { step: step + 1, source: Box::new(error) })
        });
        Self { edit: Some(edit), ..self }
    }

    /// Makes the trainer one of several replicas of a model, each of which computes a part of every batch. Each replica has a trainer of
    /// its own, in its own thread or process, built with the same settings. Its batches hold its part of the samples
    /// ([`LoaderConfig::with_replica`](kiln_data::LoaderConfig::with_replica)). Gradients are summed once a step, so that all replicas
    /// take the same step. With one micro-batch each, a step has the same bits as one on the whole batch in as many micro-batches, if
    /// both add gradients in the same [order](crate::Exact).
    ///
    /// Only the first replica writes checkpoints; all replicas have the same checkpoint settings. A run resumes with any number of
    /// replicas. [`with_batch_size`](Self::with_batch_size) counts the samples of all replicas. If memory runs out on one replica, all
    /// try the step again with less. An error on one replica ends the run on all: the others learn of it in their next common operation.
    /// The group is then over, and the run continues from a checkpoint with new trainers.
    #[must_use]
    pub fn with_replicas(self, communicator: Arc<dyn Communicator>) -> Self {
        Self { parallel: Parallel { communicator: Some(communicator), ..self.parallel }, ..self }
    }

    /// Sets whether the replicas divide the optimizer's state among them: each updates the parameters that it owns, and sends them to the
    /// others (ZeRO stage 1, Rajbhandari et al. 2020). The numbers stay the same. Checkpoints hold all of the state.
    #[must_use]
    pub fn with_sharded_optimizer(mut self, shards: bool) -> Self {
        self.parallel.shards_optimizer = shards;
        self
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
    /// [`with_micro_batch`](Self::with_micro_batch) a batch is cut into two micro-batches for each stage. [`Trainer::stage_plan`](crate::Trainer::stage_plan) returns
    /// the predicted load of each stage.
    #[must_use]
    pub fn with_stages(self, stages: StagesConfig) -> Self
    where
        T: Sync,
        T::Model: Sync,
        T::Batch: Sync,
    {
        let parallel = Parallel { stages: Some(stages), compute: compute_in_stages::<T>, ..self.parallel };
        Self { parallel, ..self }
    }

    /// Counts the heap of the CPU device with the program's global allocator: peaks are measured, and a memory budget is enforced. A GPU
    /// needs none, because its memory is counted by the device.
    #[must_use]
    pub fn with_allocator(self, allocator: &'static HeapCounts) -> Self {
        Self { allocator: Some(allocator), ..self }
    }

    /// Makes a [budget](MemoryConfig::budget) of the CPU device that of the whole process: `beside` tells how many bytes the process has and will
    /// have in memory beside a step. It is called when the step has been recorded and no model has been made. `None`: that is not
    /// known, and the budget is that of a step.
    #[must_use]
    pub fn with_process(mut self, beside: impl Fn() -> Option<u64> + 'a) -> Self {
        self.process = Some(Box::new(beside));
        self
    }

    /// Gives the model that `init` makes the values that `find` finds for it, as those of a file. In a run with a store, parameters get them one
    /// after the other, and a matrix some rows at a time, so that the model never is in memory.
    #[must_use]
    pub fn with_initial_values<E: std::error::Error + Send + Sync + 'static>(
        mut self,
        find: impl Fn(&T::Model) -> Result<InitialValues, E> + 'a,
    ) -> Self {
        self.initial.values = Box::new(move |model| find(model).map_err(|error| Error::Model(Box::new(error))));
        self
    }

    /// Calls `observer` with every event of [`Trainer::fit`](crate::Trainer::fit), after the observers that there are. The run stops when one
    /// of them returns `Break`.
    #[must_use]
    pub fn with_observer(mut self, observer: impl FnMut(&Event) -> ControlFlow<()> + 'static) -> Self {
        self.observers.events.push(ignoring_model(observer));
        self
    }

    /// Calls `observer` as [`with_observer`](Self::with_observer) does, with the model as it is after the event. Parameters in a store are
    /// placeholders in it.
    #[must_use]
    pub fn with_model_observer(mut self, observer: impl FnMut(&Event, &T::Model) -> ControlFlow<()> + 'static) -> Self {
        self.observers.events.push(Box::new(observer));
        self
    }

    /// Calls `guard` at every boundary of a step. A failure that it returns is treated as a failure of the device.
    #[must_use]
    pub fn with_guard(mut self, guard: impl Fn(Boundary) -> Result<(), Failure> + Send + Sync + 'static) -> Self {
        self.observers.guard = Some(Box::new(guard));
        self
    }

    /// Calls `pause` instead of sleeping when a batch waits for memory. `Break` gives the batch up.
    #[must_use]
    pub fn with_pause(mut self, pause: impl FnMut(Duration) -> ControlFlow<()> + Send + 'static) -> Self {
        self.observers.pause = Some(Box::new(pause));
        self
    }
}
