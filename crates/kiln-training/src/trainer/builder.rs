//! Builds a trainer: predicts a step, plans it into the memory budget, and allocates.

use std::fmt::Debug;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use burn::module::Reparameterizer;
use burn::optim::{AdamW, AdamWConfig, ModuleOptimizer};
use burn::tensor::Device;
use kiln_checkpointing::Plan;
use kiln_memory::{BackendProfile, CountingAllocator, Kernels, Meter, warm_threads};
use kiln_optimizers::FusedAdamW;
use kiln_parallel::Communicator;
use kiln_precision::{Policy, Precision, Scaling};
use kiln_recovery::{Ladder, MicroBatchSearch, MicroBatchSearchConfig, Patience, Recovery};

use super::attach::{Attach, Edit, autocast, below_the_cast};
use super::events::{Event, Every, RunLength};
use super::run::{MakeOptimizer, Observer, Trainer};
use super::watch::Watch;
use crate::batch::Batch;
use crate::checkpoints::Checkpoints;
use crate::error::Error;
use crate::optimizer::OptimizerGroups;
use crate::planning::{
    Checkpointing, DeviceLayout, MemoryBudget, Planner, RecordedStep, StagePlan, StepKind, StepPlan,
};
use crate::replicas::{Replicas, telling};
use crate::schedule::Schedule;
use crate::stages::{Compute, Division, Readers, Staged, StagesConfig, compute};
use crate::task::Task;
use crate::transaction::{Boundary, Guard, ModelState, StepSettings};

type Pause = Box<dyn FnMut(Duration) -> ControlFlow<()> + Send>;

/// Seconds to move a byte to the host and back over PCIe 4.0, at half of its 32 GB/s.
const TRANSFER: f64 = 2.0 / 16e9;

/// Makes the model on a device.
type Init<'a, M> = Box<dyn Fn(&Device) -> Result<M, Error> + 'a>;

/// A trainer to be built. Made by [`Trainer::builder`]; see there for an example.
///
/// Without settings a run is in f32, takes whole batches, has no limit of memory, AdamW with burn's settings, a constant learning
/// rate of 1e-3, and one epoch.
pub struct TrainerBuilder<'a, T: Task> {
    task: T,
    init: Init<'a, T::Model>,
    optimizer: MakeOptimizer<T::Model>,
    schedule: Schedule,
    length: RunLength,
    seed: u64,
    max_norm: Option<f64>,
    policy: Policy,
    attach: Attach<T::Model>,
    edit: Option<Edit<T::Model>>,
    other_precisions: Vec<Precision>,
    scaling: Option<Scaling>,
    memory: Option<MemoryBudget>,
    batch_size: Option<usize>,
    micro_batch: Option<usize>,
    checkpointing: Checkpointing,
    keeps_plan: bool,
    patience: Patience,
    pause: Option<Pause>,
    recovers: bool,
    predicts: bool,
    profile: Option<BackendProfile>,
    loader_bytes: u64,
    allocator: Option<&'static CountingAllocator>,
    guard: Option<Guard>,
    every: Every,
    checkpoints: Option<Checkpoints>,
    observer: Option<Observer>,
    communicator: Option<Arc<dyn Communicator>>,
    shards_optimizer: bool,
    stages: Option<(StagesConfig, Compute<T>)>,
}

impl<T: Task> Trainer<T> {
    /// A trainer of the model that `init` makes on a device.
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

    /// The same for a model whose settings may be refused.
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
                // The name in checkpoints is that of burn's own, whose state is the same.
                OptimizerGroups::from(FusedAdamW::from(AdamWConfig::new())).described(std::any::type_name::<AdamW>())
            }),
            schedule: Schedule::constant(1e-3),
            length: RunLength::Epochs(1),
            seed: 0,
            max_norm: None,
            policy: Policy::default(),
            attach: autocast(),
            edit: None,
            other_precisions: vec![],
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
            observer: None,
            communicator: None,
            shards_optimizer: false,
            stages: None,
        }
    }

    /// Keeps every step within `memory`: picks micro-batch and checkpoint plan, and offload on a card, before the first step. The replicas of
    /// a process share it on the CPU device, and so do stages on the same device.
    #[must_use]
    pub fn with_memory(self, memory: MemoryBudget) -> Self {
        Self { memory: Some(memory), ..self }
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

    /// Takes so many steps.
    #[must_use]
    pub fn with_steps(self, steps: u64) -> Self {
        Self { length: RunLength::Steps(steps), ..self }
    }

    /// Takes so many passes over the data.
    #[must_use]
    pub fn with_epochs(self, epochs: u64) -> Self {
        Self { length: RunLength::Epochs(epochs), ..self }
    }

    /// Derives all randomness of the run from `seed`: the model's parameters too, if burn initialises them.
    #[must_use]
    pub fn with_seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Scales gradients down to the global norm `max_norm` when theirs is larger.
    #[must_use]
    pub fn with_clip_norm(self, max_norm: impl Into<Option<f64>>) -> Self {
        Self { max_norm: max_norm.into(), ..self }
    }

    /// Computes under `policy`.
    #[must_use]
    pub fn with_precision(self, policy: Policy) -> Self {
        Self { policy, ..self }
    }

    /// Attaches what `make` returns to the parameters of the plain model, below the cast of the precision policy: masks, adapters, fake
    /// quantisation, or several of them as a [`Nest`](kiln_compression::Nest). The prediction of a step's memory knows them, and
    /// checkpoints hold their state. Parameters that they freeze take no gradients and no optimizer state.
    ///
    /// A checkpoint notes the debug text of what `make` returns, and a run with another text does not resume from it.
    #[must_use]
    pub fn with_reparameterization<R, E>(self, make: impl Fn(&T::Model) -> Result<R, E> + 'static) -> Self
    where
        R: Reparameterizer + Debug,
        E: std::error::Error + Send + Sync + 'static,
    {
        Self { attach: below_the_cast(make), ..self }
    }

    /// Has `edit` change the model and its optimizer between steps, as gradual pruning does; none leaves them as they are. It gets the
    /// number of steps that were taken, and must depend on nothing else but the model and the optimizer, so that a run that is interrupted
    /// and resumed has the same edits. A step that is tried again is not edited again.
    ///
    /// An edit that returns an error ends the step with [`Error::Edit`]; the run stays as it was, and the next step asks it again.
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

    /// Allows `precision` where a step does not fit into the memory in the policy's own precision.
    #[must_use]
    pub fn allow_precision(mut self, precision: Precision) -> Self {
        self.other_precisions.push(precision);
        self
    }

    /// Scales the loss by `scaling`, and not as the precision needs.
    #[must_use]
    pub fn with_scaling(self, scaling: impl Into<Option<Scaling>>) -> Self {
        Self { scaling: scaling.into(), ..self }
    }

    /// Takes batches of `samples` samples; by default as many as the sample has that [`build`](Self::build) gets.
    #[must_use]
    pub fn with_batch_size(self, samples: usize) -> Self {
        Self { batch_size: Some(samples), ..self }
    }

    /// Takes steps exactly as micro-batch, checkpointing and precision say, even if they are predicted to exceed the budget: for a
    /// run that is resumed as it was planned before.
    #[must_use]
    pub fn keeping_plan(self) -> Self {
        Self { keeps_plan: true, ..self }
    }

    /// Has at most `samples` samples on the device at once.
    #[must_use]
    pub fn with_micro_batch(self, samples: impl Into<Option<usize>>) -> Self {
        Self { micro_batch: samples.into(), ..self }
    }

    /// Recomputes blocks of the model's chains. With a memory budget, [`Checkpointing::None`] leaves the choice to the planner.
    #[must_use]
    pub fn with_checkpointing(self, checkpointing: Checkpointing) -> Self {
        Self { checkpointing, ..self }
    }

    /// Waits so long for memory that another program holds before a batch is given up; by default five minutes.
    #[must_use]
    pub fn with_patience(self, patience: Patience) -> Self {
        Self { patience, ..self }
    }

    /// Calls `pause` for each pause of a batch that waits for memory, instead of sleeping; `Break` gives the batch up.
    #[must_use]
    pub fn with_pause(self, pause: impl FnMut(Duration) -> ControlFlow<()> + Send + 'static) -> Self {
        Self { pause: Some(Box::new(pause)), ..self }
    }

    /// Ends a step with [`Error::Memory`] when memory runs out, and does not try it again.
    #[must_use]
    pub fn without_recovery(self) -> Self {
        Self { recovers: false, ..self }
    }

    /// Does not record the step: for a model that reads tensors back in its forward pass. Such a run has no memory budget and no
    /// checkpointing.
    #[must_use]
    pub fn without_prediction(self) -> Self {
        Self { predicts: false, ..self }
    }

    /// Predicts with `profile`; by default with the typical figures of the device's kind.
    #[must_use]
    pub fn with_profile(self, profile: BackendProfile) -> Self {
        Self { profile: Some(profile), ..self }
    }

    /// Counts `bytes` of the data loader into the budget of the CPU device, whose memory is the host's.
    #[must_use]
    pub fn with_loader_bytes(self, bytes: u64) -> Self {
        Self { loader_bytes: bytes, ..self }
    }

    /// Counts the heap of the CPU device by the program's global allocator: peaks are measured, and a memory budget is enforced.
    /// A card counts its memory itself.
    #[must_use]
    pub fn with_allocator(self, allocator: &'static CountingAllocator) -> Self {
        Self { allocator: Some(allocator), ..self }
    }

    /// Calls `guard` at every boundary of a step. A failure that it returns is treated as one of the device.
    #[must_use]
    pub fn with_guard(
        self,
        guard: impl Fn(Boundary) -> Result<(), kiln_recovery::Failure> + Send + Sync + 'static,
    ) -> Self {
        Self { guard: Some(Box::new(guard)), ..self }
    }

    /// Evaluates and saves at other times besides the ends of epochs.
    #[must_use]
    pub fn with_every(self, every: Every) -> Self {
        Self { every, ..self }
    }

    /// Saves the run to `checkpoints`.
    #[must_use]
    pub fn with_checkpoints(self, checkpoints: Checkpoints) -> Self {
        Self { checkpoints: Some(checkpoints), ..self }
    }

    /// Tells `observer` of every event of [`Trainer::fit`]; the run stops when it returns `Break`.
    #[must_use]
    pub fn with_observer(self, observer: impl FnMut(&Event) -> ControlFlow<()> + 'static) -> Self {
        Self { observer: Some(Box::new(observer)), ..self }
    }

    /// Makes the trainer one of several replicas of a model, each of which computes a part of every batch. Each replica has a trainer of its
    /// own, in a thread or a process of its own, built in the same way; batches hold its part of the samples
    /// ([`LoaderConfig::with_replica`](kiln_data::LoaderConfig::with_replica)). Gradients are summed once a step, so that the replicas take
    /// the same step; with one micro-batch each, a step has the bits of one on the whole batch in as many micro-batches.
    ///
    /// The first replica alone writes checkpoints; all have the same settings of them. A run resumes with any number of replicas. Batches have
    /// as many samples over all replicas as [`with_batch_size`](Self::with_batch_size) says. When memory runs out on one replica, all try the
    /// step again with less. An error of one ends the run on all: they are told in the next operation that they take part in. The group has
    /// then ended, and the run goes on from a checkpoint, with new trainers.
    #[must_use]
    pub fn with_replicas(self, communicator: Arc<dyn Communicator>) -> Self {
        Self { communicator: Some(communicator), ..self }
    }

    /// Divides the optimizer's state among the replicas: each updates the parameters that it owns, and hands them to the others (ZeRO stage
    /// 1, Rajbhandari et al. 2020). The numbers stay the same. Checkpoints hold all of the state.
    #[must_use]
    pub fn sharding_optimizer(self) -> Self {
        Self { shards_optimizer: true, ..self }
    }

    /// Divides the blocks of the model's [chain](crate::Pass::chain) into stages, each of which works on another micro-batch at the same
    /// time (pipeline parallelism). What comes before the chain runs in the first stage, what comes after it in the last one. Each stage
    /// has a device, to which the parameters and running statistics go that it uses. A parameter that several stages use is on the device of
    /// the first one, and the model moves its value to the others (`weight.to_device(&x.device())`).
    ///
    /// A tensor with a gradient that is made in one stage reaches the next one as a part of the chain's value only; a step ends with
    /// [`Error::Bypassed`] where one goes another way. Tensors without a gradient, as targets, go by
    /// [`Pass::to_device`](crate::Pass::to_device). Running statistics must be updated in one stage.
    ///
    /// Gradients, losses and running statistics have the bits of a run without stages in the same micro-batches, whatever the schedule. There
    /// are two exceptions. In a model that draws random numbers each stage seeds its own, so that its masks are other ones, and stages take
    /// turns. The gradient of a parameter that one stage uses several times, and another stage as well, is added up in another order.
    ///
    /// Of `m` micro-batches, a share of `(p - 1) / (m + p - 1)` of the time of `p` stages is idle. Without
    /// [`with_micro_batch`](Self::with_micro_batch) a batch is cut into two micro-batches for each stage.
    /// [`Trainer::stage_plan`] says what each stage is predicted to hold.
    #[must_use]
    pub fn with_stages(self, stages: StagesConfig) -> Self
    where
        T: Sync,
        T::Model: Sync,
        T::Batch: Sync,
    {
        Self { stages: Some((stages, compute::<T>)), ..self }
    }

    /// Records the step of batches like `sample`, for a device that need not be there.
    ///
    /// `batch`: samples of a whole batch.
    ///
    /// # Errors
    /// [`Error::Sample`] for fewer than 3 samples, [`Error::Predict`] for a step that cannot be recorded,
    /// [`Error::InvalidSetting`], and [`Error::Checkpointing`] for a plan that does not fit the model.
    pub fn planner(&self, profile: &BackendProfile, sample: &T::Batch, batch: usize) -> Result<Planner, Error> {
        self.check(batch)?;
        let mut steps = vec![];
        for precision in std::iter::once(self.policy.compute()).chain(self.other_precisions.iter().copied()) {
            let scaling = self.scaling.unwrap_or_else(|| Scaling::for_precision(precision));
            let policy = self.policy.clone().computing_in(precision);
            let kind = StepKind { scales_gradients: self.max_norm.is_some() || scaling != Scaling::None };
            let build = |device: &Device| (self.attach)((self.init)(device)?, &policy).map(|(model, _)| model);
            steps.push((precision, RecordedStep::of(&self.task, &kind, sample, &build, &self.optimizer)?));
        }
        let mut profile = match profile.kernels {
            Kernels::Flex => profile.clone().with_loader_bytes(self.loader_bytes),
            Kernels::Cube => profile.clone(),
        };
        profile.fixed_bytes += self.task.resident_bytes();
        let transfer = (profile.kernels == Kernels::Cube).then_some(TRANSFER);
        let sliced_profile = match profile.kernels {
            Kernels::Flex => {
                profile.clone().with_sample_bytes(sample.host_bytes().div_ceil(sample.len().max(1) as u64))
            }
            Kernels::Cube => profile.clone(),
        };
        let (micro_batch, checkpoints) = (self.micro_batch, None);
        let mut planner = Planner { steps, profile, sliced_profile, batch, micro_batch, checkpoints, transfer };
        planner.checkpoints = self.given_plan(&planner)?;
        Ok(planner)
    }

    /// The checkpoint plan that the settings name, if they name one.
    fn given_plan(&self, planner: &Planner) -> Result<Option<Plan>, Error> {
        let blocks = planner.blocks();
        Ok(match &self.checkpointing {
            Checkpointing::None | Checkpointing::Within(_) => None,
            Checkpointing::Every(length) => Some(Plan::every(blocks, *length)?),
            Checkpointing::Offload => Some(Plan::offload(blocks, 1)?),
            Checkpointing::Sqrt => Some(planner.sqrt()?),
            Checkpointing::Plan(plan) if plan.blocks() == blocks => Some(plan.clone()),
            Checkpointing::Plan(plan) => {
                return Err(kiln_checkpointing::Error::PlanLength { plan: plan.blocks(), chain: blocks }.into());
            }
        })
    }

    fn check(&self, batch: usize) -> Result<(), Error> {
        let zero = |field, value: usize| match value {
            0 => Err(Error::InvalidSetting { field, value: "0".into(), expected: "at least 1" }),
            _ => Ok(()),
        };
        zero("batch size", batch)?;
        zero("micro-batch", self.micro_batch.unwrap_or(1))
    }

    /// Builds the trainer for batches like `sample`: predicts the step, plans it into the memory
    /// budget, makes the model, and gets ready for the first step.
    ///
    /// `device` may be plain or have autodiff; the trainer uses it with autodiff. The model's parameters and the run's randomness follow
    /// from the seed.
    ///
    /// # Errors
    /// [`Error::NothingFits`] when no plan stays within the budget; [`Error::InvalidSetting`], [`Error::Precision`] and
    /// [`Error::Recovery`] for settings that cannot be; [`Error::Model`] for a model that cannot be made; those of
    /// [`planner`](Self::planner) where a plan is needed.
    pub fn build(self, device: &Device, sample: &T::Batch) -> Result<Trainer<T>, Error> {
        let communicator = self.communicator.clone();
        telling(communicator.as_deref(), || self.build_here(device, sample))
    }

    fn build_here(mut self, device: &Device, sample: &T::Batch) -> Result<Trainer<T>, Error> {
        let device = device.clone().autodiff();
        let plain = device.clone().inner();
        let on_heap = plain.memory_pool_usage().is_none();
        let replicas = self.communicator.take().filter(|communicator| communicator.replicas() > 1);
        let count = replicas.as_ref().map_or(1, |communicator| communicator.replicas());
        // A replica takes its part of a batch.
        let batch = self.batch_size.map_or(sample.len(), |batch| batch.div_ceil(count));
        self.check(batch)?;
        let limit = self.memory.map(|memory| memory.bytes(&plain)).transpose()?;
        let mut settings = StepSettings {
            schedule: self.schedule.clone(),
            total_steps: match self.length {
                RunLength::Steps(steps) => Some(steps),
                RunLength::Epochs(_) => None,
            },
            max_norm: self.max_norm,
            policy: self.policy.clone(),
            scaling: self.scaling,
            device: device.clone(),
        };
        settings.check()?; // before anything is recorded
        let planner = self.planner_of(on_heap, sample, batch)?;
        // The replicas of a process share its heap.
        let sharing =
            replicas.as_ref().map_or(1, |communicator| if on_heap { communicator.in_this_process() } else { 1 });
        let share = limit.map(|limit| limit / sharing.max(1) as u64);
        let layout = self.layout(on_heap, count);
        let stage_plan = match (&layout, &planner) {
            (None, _) => None,
            (Some(layout), Some(planner)) => Some(self.choose_stages(planner, layout, share)?),
            (Some(_), None) if self.stages.is_some() => return Err(Error::NoPrediction),
            (Some(_), None) => None,
        };
        let plan = match (&stage_plan, &planner) {
            (Some(plan), _) => Some(plan.step()),
            (None, Some(planner)) => Some(self.choose(planner, share)?),
            (None, None) => None,
        };
        if let Some(plan) = &plan {
            settings.policy = self.policy.clone().computing_in(plan.precision);
        }
        let draws_random = planner.as_ref().is_none_or(Planner::draws_random);
        let micro_batch = plan.as_ref().map_or(self.micro_batch, |plan| Some(plan.micro_batch));
        let mut plans = vec![plan.as_ref().map_or_else(|| Plan::none(0), |plan| plan.checkpoints.clone())];
        plans.extend(plans[0].stronger());

        if self.allocator.is_some() {
            warm_threads(&plain);
        }
        let meter = Meter::of_pool(&plain).or_else(|| self.allocator.map(Meter::of_heap));
        // A card's context and kernels are no pages of its pools.
        let beside = if on_heap {
            0
        } else {
            planner.as_ref().map_or(0, |planner| planner.profile.fixed_bytes - self.task.resident_bytes())
        };
        let of_step = limit.map(|limit| limit.saturating_sub(beside));
        let watch = Watch::new(plain, meter.clone(), of_step, self.guard.take());
        let replicas = replicas.map(|communicator| Replicas {
            communicator,
            draws_random,
            shards_optimizer: self.shards_optimizer,
        });
        let mut run = ModelState::new(&self.init, &self.attach, &self.optimizer, self.seed, settings, replicas)?;
        run.guard = Some(watch.guard());
        let staged = match (self.stages, &stage_plan, &planner) {
            (Some((config, compute)), Some(plan), Some(planner)) => {
                let division = Division::of(config, &plan.stages, &planner.between(), &device)?;
                let readers = Readers::new(&planner.readers(), &division.stages)?;
                let staged = Staged::new(division, readers, compute);
                run.model = staged.place(run.model);
                Some(staged)
            }
            _ => None,
        };
        let size = micro_batch.unwrap_or(usize::MAX).min(batch);
        let recovery = if self.recovers {
            // A card has kernels compiled and tuned for each size that it sees.
            let granularity = if on_heap { 1 } else { 8 };
            let config = MicroBatchSearchConfig::new(size).with_limit(limit).with_granularity(granularity);
            let search = MicroBatchSearch::new(config)?;
            let ladder = Ladder::standard().with_plans(plans.len());
            // On the CPU device the host is the device.
            let ladder = if on_heap { ladder } else { ladder.with_offload() };
            let recovery = Recovery::new(device, search, ladder).with_patience(self.patience);
            let recovery = match self.pause {
                Some(pause) => recovery.with_pause(pause),
                None => recovery,
            };
            // The peak of a pool is that of its readings, which miss the highest.
            Some(match on_heap {
                true => {
                    let watch = watch.clone();
                    recovery.measuring(move || watch.highest_peak())
                }
                false => recovery,
            })
        } else {
            None
        };
        Ok(Trainer {
            task: self.task,
            run,
            optimizer: self.optimizer,
            recovery,
            micro_batch,
            plans,
            draws_random,
            planner,
            plan,
            stage_plan,
            limit,
            meter,
            watch,
            length: self.length,
            samples: None,
            batches: None,
            every: self.every,
            checkpoints: self.checkpoints,
            observer: self.observer,
            edit: self.edit,
            edited: None,
            staged,
        })
    }

    /// The planner for the device. A step that cannot be recorded is an error only where a plan is needed.
    fn planner_of(&self, on_heap: bool, sample: &T::Batch, batch: usize) -> Result<Option<Planner>, Error> {
        let needed = self.memory.is_some() || self.checkpointing != Checkpointing::None;
        if !self.predicts {
            return if needed { Err(Error::NoPrediction) } else { Ok(None) };
        }
        let typical = || if on_heap { BackendProfile::flex() } else { BackendProfile::cuda() };
        let profile = self.profile.clone().unwrap_or_else(typical);
        match self.planner(&profile, sample, batch) {
            Ok(planner) => Ok(Some(planner)),
            Err(error @ (Error::Predict(_) | Error::Sample { .. })) if !needed => {
                tracing::warn!("the memory of a step is not predicted: {error}");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// How the run is divided among devices, if it is.
    fn layout(&self, on_heap: bool, replicas: usize) -> Option<DeviceLayout> {
        let layout = self.stages.as_ref().map(|(config, _)| {
            let number = |device: &Device| config.devices.iter().position(|other| other == device).unwrap_or(0);
            let layout = DeviceLayout::new(config.devices.len()).with_schedule(config.schedule);
            let layout = DeviceLayout { cuts: config.cuts.clone(), ..layout };
            match on_heap {
                true => layout.on_one_device(),
                false => DeviceLayout { devices: config.devices.iter().map(number).collect(), ..layout },
            }
        });
        match layout {
            None if replicas == 1 => None,
            layout => {
                let layout = layout.unwrap_or_else(|| DeviceLayout::new(1));
                Some(layout.with_replicas(replicas, self.shards_optimizer))
            }
        }
    }

    /// The plan of a run that is divided among devices.
    fn choose_stages(&self, planner: &Planner, layout: &DeviceLayout, limit: Option<u64>) -> Result<StagePlan, Error> {
        let solved = match self.checkpointing {
            Checkpointing::Within(bytes) => Some(bytes),
            _ => None,
        };
        let limit = limit.into_iter().chain(solved).min().filter(|_| !self.keeps_plan);
        let plan = planner.stage_plan(layout, limit.unwrap_or(u64::MAX))?;
        if self.micro_batch.is_none() && layout.stages() > 1 {
            let (stages, count) = (layout.stages(), plan.micro_batches());
            tracing::info!("{stages} stages, no micro-batch given: {count} micro-batches of {}", plan.micro_batch);
        }
        match limit {
            Some(bytes) => tracing::info!("within {}: {plan}", bytesize::ByteSize(bytes)),
            None => tracing::info!("{plan}"),
        }
        Ok(plan)
    }

    /// The step plan of the run.
    fn choose(&self, planner: &Planner, limit: Option<u64>) -> Result<StepPlan, Error> {
        let solved = match self.checkpointing {
            Checkpointing::Within(bytes) => Some(bytes),
            _ => None,
        };
        if let (Some(bytes), false) = (limit.into_iter().chain(solved).min(), self.keeps_plan) {
            // Without a budget for the whole step, only the checkpoint plan is free.
            let plan = match limit {
                Some(_) => planner.choose(bytes)?,
                None => planner.solve(bytes)?,
            };
            tracing::info!("within {}: {plan}", bytesize::ByteSize(bytes));
            return Ok(plan);
        }
        let checkpoints = planner.checkpoints.clone().unwrap_or_else(|| Plan::none(planner.blocks()));
        let micro_batch = self.micro_batch.unwrap_or(usize::MAX).min(planner.batch);
        planner.evaluate(self.policy.compute(), &checkpoints, micro_batch, u64::MAX)
    }
}
