//! Builds a trainer: predicts a step, plans it into the memory budget, and allocates.

use burn::tensor::Device;
use kiln_checkpointing::Plan;
use kiln_memory::{BackendProfile, Meter, warm_threads};
use kiln_recovery::{Ladder, MicroBatchSearch, MicroBatchSearchConfig, Recovery};

use super::builder::TrainerBuilder;
use super::events::RunLength;
use super::trainer::Trainer;
use super::watch::Watch;
use crate::batch::Batch;
use crate::error::Error;
use crate::planning::{Checkpointing, DeviceLayout, Planner, StagePlan, StepPlan};
use crate::progress::Progress;
use crate::replicas::Group;
use crate::schedule::Schedule;
use crate::stages::{Division, Readers, Staged};
use crate::task::Task;
use crate::transaction::{ModelState, StepSettings};

impl<T: Task> TrainerBuilder<'_, T> {
    /// Builds the trainer for batches like `sample`: predicts the step, plans it into the memory budget, and makes the model.
    ///
    /// `device` may be plain or have autodiff; the trainer uses it with autodiff. The model's parameters and all randomness of the run
    /// follow from the seed.
    ///
    /// [`Error::NothingFits`] if no plan stays within the budget; [`Error::InvalidSetting`], [`Error::Precision`] and [`Error::Recovery`]
    /// for invalid settings; [`Error::Model`] if the model cannot be made; the errors of [`planner`](Self::planner) if a plan is needed.
    pub fn build(self, device: &Device, sample: &T::Batch) -> Result<Trainer<T>, Error> {
        let group = Group::new(self.communicator.clone(), self.shards_optimizer);
        group.tell_end(|| self.build_in(group.clone(), device, sample))
    }

    fn build_in(mut self, group: Group, device: &Device, sample: &T::Batch) -> Result<Trainer<T>, Error> {
        let device = device.clone().autodiff();
        let plain = device.clone().inner();
        let on_heap = plain.memory_pool_usage().is_none();
        if self.memory.is_none() {
            let others = std::mem::take(&mut self.other_optimizers); // nothing has to fit
            if !(self.compared_optimizers.is_empty() && self.compared_precisions.is_empty()) {
                self.compared_optimizers.extend(others);
            }
        }
        let count = group.replicas();
        // A replica takes its part of a batch.
        let batch = self.batch_size.map_or(sample.len(), |batch| batch.div_ceil(count));
        self.check(batch)?;
        let limit = self.memory.map(|memory| memory.bytes(&plain)).transpose()?;
        // A configured batch size is that of all replicas. Without one, each replica has a sample like this.
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
        let sharing = if on_heap { group.in_this_process() } else { 1 };
        let share = limit.map(|limit| limit / sharing as u64);
        let layout = self.layout(on_heap, count);
        let stage_plan = match (&layout, &planner) {
            (None, _) => None,
            (Some(layout), Some(planner)) => Some(self.choose_stages(planner, layout, share)?),
            (Some(_), None) if self.stages.is_some() => return Err(Error::NoPrediction),
            (Some(_), None) => None,
        };
        let plan = match (&stage_plan, &planner) {
            (Some(plan), _) => Some(plan.step.clone()),
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
        // A GPU's context and kernels are outside of the pages of its pools.
        let beside = if on_heap {
            0
        } else {
            planner.as_ref().map_or(0, |planner| planner.profile.fixed_bytes - self.task.resident_bytes())
        };
        let of_step = limit.map(|limit| limit.saturating_sub(beside));
        let watch = Watch::new(plain, meter.clone(), of_step, self.guard.take());
        let mut run = ModelState::new(&self.init, &self.attach, &self.optimizer, self.seed, settings, group)?;
        run.guard = Some(watch.guard());
        let staged = match (self.stages, &stage_plan, &planner) {
            (Some(config), Some(plan), Some(planner)) => {
                let division = Division::of(config, &plan.stages, &planner.between(), &device)?;
                let readers = Readers::new(&planner.readers(), &division.stages)?;
                let staged = Staged::new(division, readers);
                run.model = staged.place(run.model);
                Some(staged)
            }
            _ => None,
        };
        let size = micro_batch.unwrap_or(usize::MAX).min(batch);
        let recovery = if self.recovers {
            // On a GPU, kernels are compiled and tuned for each size that occurs.
            let granularity = if on_heap { 1 } else { 8 };
            let config = MicroBatchSearchConfig::new(size).with_limit(limit).with_granularity(granularity);
            let search = MicroBatchSearch::new(config)?;
            let ladder = Ladder::standard().with_plans(plans.len());
            // On the CPU device the host is the device.
            let ladder = if on_heap { ladder } else { ladder.with_offload() };
            let recovery = Recovery::new(device, search, ladder).with_patience(self.patience);
            Some(match self.pause {
                Some(pause) => recovery.with_pause(pause),
                None => recovery,
            })
        } else {
            None
        };
        Ok(Trainer {
            task: self.task,
            run,
            optimizer: self.optimizer,
            recovery,
            learns_peaks: on_heap,
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
            saved: 0,
            takes_other_length: self.takes_other_length,
            forgets_sizes: self.forgets_sizes,
            observer: self.observer,
            edit: self.edit,
            edited: None,
            compute: self.compute,
            staged,
        })
    }

    /// The learning rate for an effective batch of this many samples.
    fn schedule(&self, effective: usize) -> Result<Schedule, Error> {
        let schedule = self.schedule.clone();
        schedule.check()?;
        let Some(scaling) = self.batch_scaling else { return Ok(schedule) };
        let (factor, base) = (scaling.factor(effective), scaling.base_batch);
        let scaled = scaling.apply(schedule, effective)?;
        tracing::info!("batches of {effective}, learning rate for {base}: times {factor:.4}");
        Ok(scaled)
    }

    /// The planner for the device. A step that cannot be recorded is an error only if a plan is needed.
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

    /// The division of the run among devices, if any.
    fn layout(&self, on_heap: bool, replicas: usize) -> Option<DeviceLayout> {
        let layout = self.stages.as_ref().map(|config| {
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
            // Without a budget for the whole step, only the checkpoint plan is open.
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
