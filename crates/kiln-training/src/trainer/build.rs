//! Begins and builds a trainer: predicts a step, plans it into the memory budget, and allocates.

use std::sync::Arc;

use burn::tensor::Device;
use kiln_accumulation::RunningStatistics;
use kiln_checkpointing::Plan;
use kiln_memory::{Meter, warm_threads};
use kiln_recovery::{Ladder, MicroBatchSearch, MicroBatchSearchConfig, Recovery};

use super::builder::TrainerBuilder;
use super::events::RunLength;
use super::trainer::Trainer;
use super::watch::Watch;
use crate::batch::Batch;
use crate::error::Error;
use crate::planning::{
    Cuts, DeviceLayout, Exact, MemoryBudget, Planner, Recompute, RunPlan, StagePlan, StepPlan, typical,
};
use crate::pressure::PressureAlarm;
use crate::progress::{BestConfig, Progress};
use crate::replicas::Group;
use crate::schedule::Schedule;
use crate::stages::{Division, Readers, Staged};
use crate::task::Task;
use crate::transaction::{Initialization, ModelState, StepSettings, StoreConfig, StoredParameters};

/// The place where a trainer is built.
struct Site {
    group: Group,
    /// The device with autodiff.
    device: Device,
    /// Whether the device's memory is the heap of the process.
    on_heap: bool,
    /// Samples of this replica's part of a batch.
    batch: usize,
    /// Bytes that the run may take.
    budget: Option<u64>,
    /// Bytes of them that the process takes beside a step.
    beside: u64,
}

impl Site {
    /// Bytes that a step may take.
    fn limit(&self) -> Option<u64> {
        self.budget.map(|budget| budget - self.beside)
    }
}

/// The plan of a run, as far as its steps could be predicted.
struct Planned {
    planner: Option<Planner>,
    plan: Option<RunPlan>,
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

impl<T: Task> TrainerBuilder<'_, T> {
    /// Builds the trainer for batches like `sample`: predicts the step, plans it into the memory budget, and makes the model.
    ///
    /// `device` may be plain or have autodiff; the trainer uses it with autodiff. The model's parameters and all randomness of the run
    /// follow from the seed.
    ///
    /// # Errors
    /// - settings: [`Error::InvalidSetting`], [`Error::Precision`] and [`Error::Recovery`]. [`Error::UnknownPath`] for a frozen path that no
    ///   parameter has.
    /// - the budget: [`Error::NothingFits`] if no plan stays within it, [`Error::UnknownMemory`] if it is a fraction of the free memory and
    ///   that is not known.
    /// - the plan, if one is needed: the errors of [`planner`](Self::planner), and [`Error::NoPrediction`] if steps are not predicted.
    /// - the model: [`Error::Model`] if it cannot be made.
    /// - stages and replicas: [`Error::Parallel`], and [`Error::Replica`] if another replica failed or has other settings.
    pub fn build(self, device: &Device, sample: &T::Batch) -> Result<Trainer<T>, Error> {
        let group = Group::new(self.parallel.communicator.clone(), self.parallel.shards_optimizer);
        group.tell_end(|| self.build_in(group.clone(), device, sample))
    }

    fn build_in(mut self, group: Group, device: &Device, sample: &T::Batch) -> Result<Trainer<T>, Error> {
        self.compare_optimizers();
        let mut site = self.site(group, device, sample)?;
        if self.memory.exact == Exact::Always && !self.memory.prediction && site.on_heap {
            let expected = "where-possible or never without a prediction, which tells whether batches may be cut";
            return Err(Error::InvalidSetting { name: "exact", value: "always".into(), expected });
        }
        let mut settings = self.step_settings(&site, sample)?;
        settings.check()?; // before anything is recorded
        let planned = self.planned(&mut site, sample)?;
        if let Some(plan) = &planned.plan {
            settings.policy = self.run.precision.clone().computing_in(plan.precision);
            self.take_optimizer(plan);
        }
        let watch = self.watch(&site, planned.planner.as_ref());
        let store = self.store(&planned, site.on_heap)?;
        let is_stored = store.is_some();
        let initialization = match store {
            Some(store) => Initialization::InStore(store),
            None if self.attaches_early => Initialization::AfterAttaching,
            None => Initialization::BeforeAttaching,
        };

        let (init, group) =
            (|device: &Device| self.initial.of_run(device, &self.run.frozen, is_stored), site.group.clone());
        let mut run =
            ModelState::new(init, initialization, &self.attach, &self.optimizers.own, self.run.seed, settings, group)?;
        run.guard = Some(watch.guard());
        let staged = self.staged(&site, &planned)?;
        if let Some(staged) = &staged {
            run.model = staged.place(run.model);
        }
        let Planned { planner, plan } = planned;
        if let Some(plan) =
            plan.as_ref().filter(|plan| plan.micro_batch < plan.batch && self.memory.micro_batch.is_none())
            && !RunningStatistics::before(&run.model).is_empty()
        {
            let (micro, batch) = (plan.micro_batch, plan.batch);
            tracing::warn!(
                "batch norm sees {micro} samples at a time, not {batch}: other numbers than those of whole batches"
            );
        }
        let micro_batch = plan.as_ref().map_or(self.memory.micro_batch, |plan| Some(plan.micro_batch));
        let mut plans = vec![plan.as_ref().map_or_else(|| Plan::none(0), |plan| plan.checkpoints.clone())];
        plans.extend(plans[0].stronger());
        let streams = plan.as_ref().is_some_and(|plan| plan.checkpoints.streams());
        let (in_order, cuts) = match (&planner, &plan) {
            (Some(planner), Some(plan)) => {
                let step = planner.planner_for(plan).step_in(plan.precision)?;
                let cuts = if streams { step.cuts_in_store() } else { step.cuts().clone() };
                (*step.cuts() == Cuts::KeepBits, cuts)
            }
            _ => (false, Cuts::Round),
        };
        let fixed = cuts != Cuts::KeepBits && (in_order || self.memory.exact == Exact::Always);
        match &cuts {
            Cuts::Mix(mixes) if fixed => tracing::info!("batches are not cut: {mixes}"),
            Cuts::Mix(mixes) if micro_batch.is_some_and(|size| size < site.batch) => {
                tracing::info!("micro-batches change bits: {mixes}");
            }
            Cuts::Mix(_) | Cuts::Round | Cuts::KeepBits => {}
        }
        let recovery = self.recovery(&site, micro_batch, plans.len(), fixed)?;
        let context_bytes = self.context_bytes(&site, planner.as_ref());
        let mut trainer = Trainer {
            task: self.task,
            run,
            optimizer: self.optimizers.own,
            recovery,
            learns_peaks: site.on_heap,
            micro_batch,
            plans,
            draws_random: planner.as_ref().is_none_or(Planner::draws_random),
            read_once: planner.as_ref().map(Planner::read_once).unwrap_or_default(),
            in_order,
            planner,
            plan,
            limit: site.limit(),
            beside: site.beside,
            context_bytes,
            meter: watch.meter().cloned(),
            watch,
            growth: None,
            pressure: PressureAlarm::default(),
            is_pressed: false,
            length: self.run.length,
            samples: None,
            batches: None,
            checkpoints: self.checkpoints,
            progress: Progress::default(),
            saved: 0,
            observers: self.observers.events,
            edit: self.edit,
            edited: None,
            compute: self.parallel.compute,
            staged,
            store: self.memory.store.filter(|_| is_stored),
            stale: false,
        };
        trainer.go_on_in_store()?;
        Ok(trainer)
    }

    /// The store of a run whose plan streams blocks.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] without a store, and for a run that cannot have one.
    fn store(&self, planned: &Planned, on_heap: bool) -> Result<Option<StoredParameters>, Error> {
        let (Some(planner), Some(plan)) = (&planned.planner, &planned.plan) else { return Ok(None) };
        // A store that has the run is used in any case.
        if !plan.checkpoints.streams() && !self.memory.store.as_ref().is_some_and(StoreConfig::has_run) {
            return Ok(None);
        }
        let refuse = |name, value: &str, expected| Err(Error::InvalidSetting { name, value: value.into(), expected });
        match &self.memory.store {
            None => refuse("store", "none", "a directory or the host's memory: the plan streams blocks"),
            Some(StoreConfig::Host) if on_heap && self.memory.budget.is_some() => {
                refuse("store", "host", "a directory: on the CPU device the host's memory is the device's")
            }
            Some(_) if matches!(plan, RunPlan::Divided(_)) => refuse(
                "checkpoint plan",
                &plan.checkpoints.to_string(),
                "one that streams no block of stages or replicas",
            ),
            Some(_) if self.edit.is_some() => refuse("edit of the model", "set", "none in a run that streams blocks"),
            Some(_) if self.attaches => {
                refuse("attachment to the parameters", "set", "none in a run that streams blocks")
            }
            Some(store) => Ok(Some(StoredParameters::new(store.clone(), planner.streamed(&plan.checkpoints)))),
        }
    }

    /// Without a budget nothing has to fit: the allowed optimizers are only compared, if anything is.
    fn compare_optimizers(&mut self) {
        if self.memory.budget.is_none() {
            let others = std::mem::take(&mut self.optimizers.allowed);
            if !(self.optimizers.compared.is_empty() && self.memory.compared_precisions.is_empty()) {
                self.optimizers.compared.extend(others);
            }
        }
    }

    fn site(&self, group: Group, device: &Device, sample: &T::Batch) -> Result<Site, Error> {
        let device = device.clone().autodiff();
        let plain = device.clone().inner();
        // A replica takes its part of a batch.
        let batch = self.run.batch_size.map_or(sample.len(), |batch| batch.div_ceil(group.replicas()));
        self.check(batch)?;
        let budget = self.memory.budget.map(|budget| budget.bytes(&plain)).transpose()?;
        let on_heap = plain.memory_pool_usage().is_none();
        Ok(Site { group, device, on_heap, batch, budget, beside: 0 })
    }

    fn step_settings(&self, site: &Site, sample: &T::Batch) -> Result<StepSettings, Error> {
        // A configured batch size is that of all replicas. Without one, each replica has a sample like this.
        let effective = self.run.batch_size.unwrap_or(sample.len() * site.group.replicas());
        if let Some(best) = &self.checkpoints.best {
            best.check(!self.schedule.is_burns())?;
        }
        Ok(StepSettings {
            schedule: self.schedule(effective)?,
            reduction: self.checkpoints.best.as_ref().and_then(BestConfig::reduction),
            total_steps: match self.run.length {
                RunLength::Steps(steps) => Some(steps),
                RunLength::Epochs(_) => None,
            },
            max_norm: self.run.clip_norm,
            policy: self.run.precision.clone(),
            scaling: self.run.loss_scaling,
            device: site.device.clone(),
        })
    }

    /// Bytes of a budget that are for the process beside a step. A share of the free memory is what the process may take in addition.
    fn beside(&self, site: &Site) -> Result<u64, Error> {
        let (Some(MemoryBudget::Bytes(budget)), true, Some(beside)) = (self.memory.budget, site.on_heap, &self.process)
        else {
            return Ok(0);
        };
        // No replica of this process has a model before all have seen what there is. What a task keeps counts as a step's.
        site.group.most(0)?;
        let beside = beside().unwrap_or(0).saturating_sub(self.task.resident_bytes());
        let beside = site.group.most(beside)?;
        if beside >= budget && !self.memory.fixed_plan {
            return Err(Error::NoRoom { budget_bytes: budget, process_bytes: beside });
        }
        if beside > 0 && site.group.is_first() {
            let (beside, budget) = (bytesize::ByteSize(beside), bytesize::ByteSize(budget));
            tracing::info!("the process takes {beside} of {budget} beside a step");
        }
        Ok(beside)
    }

    fn planned(&self, site: &mut Site, sample: &T::Batch) -> Result<Planned, Error> {
        let mut planner = self.planner_of(site, sample)?;
        let beside = self.beside(site)?;
        // A given plan was made when the process may have taken less: its steps keep their room.
        site.beside = if self.memory.fixed_plan { 0 } else { beside };
        // The replicas of a process share its heap.
        let sharing = if site.on_heap { site.group.in_this_process() } else { 1 };
        let share = site.limit().map(|limit| limit / sharing as u64);
        let plan = match (self.layout(site), &planner) {
            (Some(layout), Some(planner)) => Some(RunPlan::Divided(self.choose_stages(planner, &layout, share)?)),
            (Some(_), None) if self.parallel.stages.is_some() => return Err(Error::NoPrediction),
            (None, Some(planner)) => Some(RunPlan::Whole(self.choose(planner, share)?)),
            (_, None) => None,
        };
        if let (Some(planner), Some(plan)) = (&mut planner, plan.as_ref().filter(|plan| plan.checkpoints.streams())) {
            planner.keep_only(plan); // a run that needs a store has no memory for more
        }
        if let (true, Some(budget), Some(plan)) = (self.memory.fixed_plan, site.budget, &plan) {
            let needed = (plan.peak_bytes + plan.peak_bytes.div_ceil(50)).saturating_mul(sharing as u64);
            site.beside = beside.min(budget.saturating_sub(needed));
        }
        Ok(Planned { planner, plan })
    }

    /// Replaces the run's optimizer by the one of the plan.
    fn take_optimizer(&mut self, plan: &StepPlan) {
        if let Some(at) = self.optimizers.allowed.iter().position(|other| other.which == plan.optimizer) {
            self.optimizers.own = self.optimizers.allowed.swap_remove(at).make;
        }
    }

    /// Bytes of a GPU's context and kernels, which are outside of the pages of its pools.
    fn context_bytes(&self, site: &Site, planner: Option<&Planner>) -> u64 {
        let planner = planner.filter(|_| !site.on_heap);
        planner.map_or(0, |planner| planner.profile.fixed_bytes.saturating_sub(self.task.resident_bytes()))
    }

    fn watch(&mut self, site: &Site, planner: Option<&Planner>) -> Arc<Watch> {
        let plain = site.device.clone().inner();
        if self.allocator.is_some() {
            warm_threads(&plain);
        }
        let meter = Meter::of_pool(&plain).or_else(|| self.allocator.map(Meter::of_heap));
        let outside = self.context_bytes(site, planner);
        let limit = site.limit().map(|limit| limit.saturating_sub(outside));
        Watch::new(plain, meter, limit, self.observers.guard.take())
    }

    fn staged(&mut self, site: &Site, planned: &Planned) -> Result<Option<Staged>, Error> {
        let (Some(config), Some(RunPlan::Divided(plan)), Some(planner)) =
            (self.parallel.stages.take(), &planned.plan, &planned.planner)
        else {
            return Ok(None);
        };
        let division = Division::of(config, &plan.stages, &planner.between(), &site.device)?;
        let readers = Readers::new(&planner.readers(), &division.stages)?;
        Ok(Some(Staged::new(division, readers)))
    }

    fn recovery(
        &mut self,
        site: &Site,
        micro_batch: Option<usize>,
        plans: usize,
        fixed: bool,
    ) -> Result<Option<Recovery>, Error> {
        if !self.memory.recovery {
            return Ok(None);
        }
        let size = micro_batch.unwrap_or(usize::MAX).min(site.batch);
        // On a GPU, kernels are compiled and tuned for each size that occurs.
        let granularity = if site.on_heap { 1 } else { 8 };
        let config = MicroBatchSearchConfig::new(size).with_limit(site.limit()).with_granularity(granularity);
        let config = if fixed { config.with_min(size) } else { config };
        let ladder = Ladder::standard().with_plans(plans);
        // On the CPU device the host is the device.
        let ladder = if site.on_heap { ladder } else { ladder.with_offload() };
        let recovery = Recovery::new(site.device.clone(), MicroBatchSearch::new(config)?, ladder);
        let recovery = recovery.with_patience(self.memory.patience);
        Ok(Some(match self.observers.pause.take() {
            Some(pause) => recovery.with_pause(pause),
            None => recovery,
        }))
    }

    /// The learning rate for an effective batch of this many samples.
    fn schedule(&self, effective: usize) -> Result<Schedule, Error> {
        let schedule = self.schedule.clone();
        schedule.check()?;
        let Some(scaling) = self.run.batch_scaling else { return Ok(schedule) };
        let (factor, base) = (scaling.factor(effective), scaling.base_batch);
        let scaled = scaling.apply(schedule, effective)?;
        tracing::info!("batches of {effective}, learning rate for {base}: times {factor:.4}");
        Ok(scaled)
    }

    /// The planner for the device. A step that cannot be recorded is an error only if a plan is needed.
    fn planner_of(&self, site: &Site, sample: &T::Batch) -> Result<Option<Planner>, Error> {
        let needed = self.memory.budget.is_some() || self.memory.recompute != Recompute::None;
        if !self.memory.prediction {
            return if needed { Err(Error::NoPrediction) } else { Ok(None) };
        }
        let given = self.memory.profile.clone().unwrap_or_else(|| typical(&site.device));
        let mut profile = given.clone().on(&site.device);
        // Stages are planned for one kind of device. A buffer that one of theirs does not make is too large.
        let others = self.parallel.stages.iter().flat_map(|stages| &stages.devices);
        let largest = others.filter_map(|device| given.clone().on(device).largest_buffer).min();
        profile.largest_buffer = largest.or(profile.largest_buffer);
        match self.planner(&profile, sample, site.batch) {
            Ok(planner) => Ok(Some(planner)),
            Err(error @ (Error::Predict(_) | Error::Sample { .. })) if !needed => {
                tracing::warn!("the memory of a step is not predicted: {error}");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The division of the run among devices, if any.
    fn layout(&self, site: &Site) -> Option<DeviceLayout> {
        let layout = self.parallel.stages.as_ref().map(|config| {
            let number = |device: &Device| config.devices.iter().position(|other| other == device).unwrap_or(0);
            let layout = DeviceLayout::new(config.devices.len()).with_schedule(config.schedule);
            let layout = DeviceLayout { cuts: config.cuts.clone(), ..layout };
            match site.on_heap {
                true => layout.on_one_device(),
                false => DeviceLayout { devices: config.devices.iter().map(number).collect(), ..layout },
            }
        });
        let layout = layout.or_else(|| site.group.has_others().then(|| DeviceLayout::new(1)))?;
        Some(layout.with_replicas(site.group.replicas(), self.parallel.shards_optimizer))
    }

    /// Bytes that a plan has to fit into. `None` if the plan is given.
    fn limit_of_plan(&self, limit: Option<u64>) -> Option<u64> {
        let recompute = match self.memory.recompute {
            Recompute::Within(bytes) => Some(bytes),
            _ => None,
        };
        limit.into_iter().chain(recompute).min().filter(|_| !self.memory.fixed_plan)
    }

    /// The plan of a run that is divided among devices.
    fn choose_stages(&self, planner: &Planner, layout: &DeviceLayout, limit: Option<u64>) -> Result<StagePlan, Error> {
        let limit = self.limit_of_plan(limit);
        let plan = planner.stage_plan(layout, limit.unwrap_or(u64::MAX))?;
        if self.memory.micro_batch.is_none() && layout.stages() > 1 {
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
        if let Some(bytes) = self.limit_of_plan(limit) {
            // Without a budget for the whole step, only the checkpoint plan is open.
            let plan = match limit {
                Some(_) => planner.choose(bytes)?,
                None => planner.solve(bytes)?,
            };
            tracing::info!("within {}: {plan}", bytesize::ByteSize(bytes));
            return Ok(plan);
        }
        let checkpoints = planner.checkpoints.clone().unwrap_or_else(|| Plan::none(planner.blocks()));
        let is_whole = checkpoints.streams() && planner.keeps_bits() && planner.cuts(true) != Cuts::KeepBits;
        let most = self.memory.micro_batch.filter(|_| !is_whole);
        let micro_batch = most.unwrap_or(usize::MAX).min(planner.batch);
        let plan = planner.evaluate(self.run.precision.compute(), &checkpoints, micro_batch, u64::MAX)?;
        if plan.fits { Ok(plan) } else { Err(planner.nothing_fits(u64::MAX, &plan)?) }
    }
}
