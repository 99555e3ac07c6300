//! Builds a trainer: predicts a step, plans it into the memory budget, and allocates.

use burn::tensor::Device;
use kiln_checkpointing::Plan;
use kiln_memory::{BackendProfile, Kernels, Meter, warm_threads};
use kiln_precision::{Precision, Scaling};
use kiln_recovery::{Ladder, MicroBatchSearch, MicroBatchSearchConfig, Recovery};
use std::fmt::Display;

use super::builder::{AllowedOptimizer, TrainerBuilder};
use super::events::RunLength;
use super::run::{MakeOptimizer, Trainer};
use super::watch::Watch;
use crate::batch::Batch;
use crate::error::Error;
use crate::planning::{
    Checkpointing, DeviceLayout, PlannedOptimizer, Planner, RecordedStep, StagePlan, StepKind, StepPlan,
};
use crate::progress::Progress;
use crate::replicas::{Replicas, telling};
use crate::schedule::Schedule;
use crate::stages::{Division, Readers, Staged};
use crate::task::Task;
use crate::transaction::{ModelState, StepSettings};

/// Seconds to move a byte to the host and back over PCIe 4.0, at half of its 32 GB/s.
const TRANSFER: f64 = 2.0 / 16e9;

impl<T: Task> TrainerBuilder<'_, T> {
    /// Records the step of batches like `sample`, for a device that need not be there.
    ///
    /// `batch`: samples of a whole batch.
    ///
    /// # Errors
    /// [`Error::Sample`] for fewer than 3 samples, [`Error::Predict`] for a step that cannot be recorded,
    /// [`Error::InvalidSetting`], and [`Error::Checkpointing`] for a plan that does not fit the model.
    pub fn planner(&self, profile: &BackendProfile, sample: &T::Batch, batch: usize) -> Result<Planner, Error> {
        self.check(batch)?;
        let mut planner = self.planner_with(&PlannedOptimizer::Own, &self.optimizer, profile, sample, batch)?;
        planner.alternatives = self.alternatives(&self.other_optimizers, profile, sample, batch)?;
        // Those that are allowed already need no recording of their own. What cannot be recorded is not compared: the run does not need it.
        let skipped = |what: &dyn Display, error: &Error| tracing::debug!("{what} is not compared: {error}");
        for other in &self.compared_optimizers {
            if self.other_optimizers.iter().any(|known| known.which == other.which) {
                continue;
            }
            match self.alternatives([other], profile, sample, batch) {
                Ok(compared) => planner.compared_optimizers.extend(compared),
                Err(error) => skipped(&other.which, &error),
            }
        }
        for precision in &self.compared_precisions {
            if planner.precisions().any(|known| known == *precision) {
                continue;
            }
            match self.recorded(*precision, &self.optimizer, sample) {
                Ok(step) => planner.compared.push((*precision, step)),
                Err(error) => skipped(precision, &error),
            }
        }
        Ok(planner)
    }

    /// The planners of other optimizers.
    fn alternatives<'o>(
        &self,
        optimizers: impl IntoIterator<Item = &'o AllowedOptimizer<T::Model>>,
        profile: &BackendProfile,
        sample: &T::Batch,
        batch: usize,
    ) -> Result<Vec<Planner>, Error>
    where
        T::Model: 'o,
    {
        let mut alternatives = vec![];
        for AllowedOptimizer { which, make } in optimizers {
            if *which == PlannedOptimizer::OwnOnHost && profile.kernels == Kernels::Flex {
                continue;
            }
            let mut alternative = self.planner_with(which, make, profile, sample, batch)?;
            if which.is_on_host() && profile.kernels == Kernels::Cube {
                alternative.update_transfer = alternative.state_bytes()? as f64 * TRANSFER;
            }
            alternatives.push(alternative);
        }
        Ok(alternatives)
    }

    /// The step in one precision with one of the optimizers.
    fn recorded(
        &self,
        precision: Precision,
        optimizer: &MakeOptimizer<T::Model>,
        sample: &T::Batch,
    ) -> Result<RecordedStep, Error> {
        let scaling = self.scaling.unwrap_or_else(|| Scaling::for_precision(precision));
        let policy = self.policy.clone().computing_in(precision);
        let kind = StepKind { scales_gradients: self.max_norm.is_some() || scaling != Scaling::None };
        let build = |device: &Device| (self.attach)((self.init)(device)?, &policy).map(|(model, _)| model);
        RecordedStep::of(&self.task, &kind, sample, &build, optimizer)
    }

    /// The planner of the step with one of the optimizers.
    fn planner_with(
        &self,
        which: &PlannedOptimizer,
        optimizer: &MakeOptimizer<T::Model>,
        profile: &BackendProfile,
        sample: &T::Batch,
        batch: usize,
    ) -> Result<Planner, Error> {
        let mut steps = vec![];
        for precision in std::iter::once(self.policy.compute()).chain(self.other_precisions.iter().copied()) {
            let step = self.recorded(precision, optimizer, sample)?;
            steps.push((precision, step));
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
        let (optimizer, alternatives, update_transfer) = (which.clone(), vec![], 0.0);
        let (compared, compared_optimizers) = (vec![], vec![]);
        let mut planner = Planner {
            optimizer,
            alternatives,
            compared,
            compared_optimizers,
            update_transfer,
            steps,
            profile,
            sliced_profile,
            batch,
            micro_batch,
            checkpoints,
            transfer,
        };
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
        if self.memory.is_none() {
            let others = std::mem::take(&mut self.other_optimizers); // nothing has to fit
            if !(self.compared_optimizers.is_empty() && self.compared_precisions.is_empty()) {
                self.compared_optimizers.extend(others);
            }
        }
        let replicas = self.communicator.take().filter(|communicator| communicator.replicas() > 1);
        let count = replicas.as_ref().map_or(1, |communicator| communicator.replicas());
        // A replica takes its part of a batch.
        let batch = self.batch_size.map_or(sample.len(), |batch| batch.div_ceil(count));
        self.check(batch)?;
        let limit = self.memory.map(|memory| memory.bytes(&plain)).transpose()?;
        // With a batch size, that of all replicas; else each has a sample like its own.
        let effective = self.batch_size.unwrap_or(sample.len() * count);
        let mut settings = StepSettings {
            schedule: self.schedule(effective)?,
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
        if let Some(plan) = &plan
            && let Some(at) = self.other_optimizers.iter().position(|other| other.which == plan.optimizer)
        {
            self.optimizer = self.other_optimizers.swap_remove(at).make;
        }
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
            best: self.best,
            progress: Progress::default(),
            takes_other_length: self.takes_other_length,
            forgets_sizes: self.forgets_sizes,
            observer: self.observer,
            edit: self.edit,
            edited: None,
            staged,
        })
    }

    /// The learning rate for an effective batch of so many samples.
    fn schedule(&self, effective: usize) -> Result<Schedule, Error> {
        let schedule = self.schedule.clone();
        schedule.check()?;
        let Some(scaling) = self.batch_scaling else { return Ok(schedule) };
        let (factor, base) = (scaling.factor(effective), scaling.base_batch);
        let scaled = scaling.apply(schedule, effective)?;
        tracing::info!("batches of {effective}, learning rate for {base}: times {factor:.4}");
        Ok(scaled)
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
