//! The trainer and its step.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kiln_accumulation::{Split, Weight};
use kiln_checkpointing::Plan;
use kiln_memory::Meter;
use kiln_recovery::{AttemptOutcome, Failure, Pauses, Recovery, Setting, Stopped, attempt};

use super::attach::Edit;
use super::events::{Event, Every, RunLength};
use super::exhausted::explain;
use super::watch::Watch;
use crate::batch::{Batch, Part};
use crate::checkpoints::Checkpoints;
use crate::error::Error;
use crate::optimizer::OptimizerGroups;
use crate::pass::Pass;
use crate::planning::{Planner, StagePlan, StepPlan, plan_for};
use crate::progress::{BestConfig, Progress};
use crate::replicas::{set_aside, telling};
use crate::stages::{Inputs, Staged};
use crate::task::Task;
use crate::transaction::{Attempted, ModelState, Share, StepReport};

pub(super) type MakeOptimizer<M> = Box<dyn Fn(&M) -> OptimizerGroups>;
pub(super) type Observer = Box<dyn FnMut(&Event) -> ControlFlow<()>>;

/// A model in training inside a memory budget. Made by [`Trainer::builder`].
///
/// A [`step`](Self::step) applies completely or not at all: parameters, optimizer state, batch-norm's statistics, loss scale and position
/// change together. If memory runs out, the step is tried again on the same batch, with smaller micro-batches, recomputed blocks or after
/// a pause. Smaller micro-batches give the same result up to rounding, except for batch-norm, which normalises each micro-batch by
/// itself, and dropout, which draws masks for each.
///
/// A step seeds the device's random numbers, which burn keeps once per process. Replicas take turns. Two independent trainers in threads
/// of one process draw from the same numbers, so that dropout does not repeat bit for bit.
pub struct Trainer<T: Task> {
    pub(super) task: T,
    pub(super) run: ModelState<T::Model>,
    pub(super) optimizer: MakeOptimizer<T::Model>,
    pub(super) recovery: Option<Recovery>,
    /// The limit of samples on the device at once, in a run without recovery. `None`: the whole batch.
    pub(super) micro_batch: Option<usize>,
    /// The checkpoint plan, followed by stronger plans, each of which keeps less than the one before.
    pub(super) plans: Vec<Plan>,
    /// Whether blocks may draw random numbers.
    pub(super) draws_random: bool,
    pub(super) planner: Option<Planner>,
    pub(super) plan: Option<StepPlan>,
    pub(super) stage_plan: Option<StagePlan>,
    pub(super) limit: Option<u64>,
    pub(super) meter: Option<Meter>,
    pub(super) watch: Arc<Watch>,
    pub(super) length: RunLength,
    /// Samples of the data that the run began with, once it has seen data.
    pub(super) samples: Option<usize>,
    /// Batches of an epoch, once the data is known.
    pub(super) batches: Option<usize>,
    pub(super) every: Every,
    pub(super) checkpoints: Option<Checkpoints>,
    /// The metric that the run is judged by, if any.
    pub(super) best: Option<BestConfig>,
    pub(super) progress: Progress,
    /// The step of the newest checkpoint that this trainer has read or written.
    pub(super) saved: u64,
    /// Whether a checkpoint of a run with another number of steps may be resumed.
    pub(super) takes_other_length: bool,
    /// Whether sizes that fit according to a checkpoint are ignored.
    pub(super) forgets_sizes: bool,
    pub(super) observer: Option<Observer>,
    pub(super) edit: Option<Edit<T::Model>>,
    /// The step before which the model was last edited.
    pub(super) edited: Option<u64>,
    /// The stages that the model is divided into, if any.
    pub(super) staged: Option<Staged<T>>,
}

impl<T: Task> Trainer<T> {
    /// Takes one step on `batch`. The batch is cut into micro-batches as planned, and tried again with less if memory runs out. The step
    /// is taken once, whatever the number of attempts.
    ///
    /// The order: submit burn's pending operations to the device; for each micro-batch seed it from (seed, step, index), forward, scale,
    /// backward, add in f32; read loss and gradient norm, to which every gradient contributes; unscale, clip by global norm and update,
    /// one chunk of the parameters after the other. If gradients are not finite at a loss scale that can fall, the step is skipped: only
    /// the position and the scale change.
    ///
    /// [`Error::NothingToLearn`] for a batch without a loss, [`Error::NotFinite`], [`Error::NoGradients`], [`Error::Accumulation`],
    /// [`Error::Checkpointing`], [`Error::Device`], [`Error::Lost`]. [`Error::Exhausted`] if memory ran out and nothing is left to try,
    /// and [`Error::Memory`] if it ran out in a run without recovery. After these errors everything is unchanged. [`Error::Unfinished`]
    /// if memory ran out during the update for longer than the patience: see [`complete_update`](Self::complete_update).
    ///
    /// # Panics
    /// When the task panics for another reason than memory.
    pub fn step(&mut self, batch: &T::Batch) -> Result<StepReport, Error> {
        let nothing = Error::NothingToLearn { step: self.run.state.next_step() };
        self.step_on(Some(batch))?.ok_or(nothing)
    }

    /// Takes one step as [`step`](Self::step) does. A replica may have no part of the batch, if no sample of its part could be read. If
    /// no replica has a part, no step is taken.
    pub(super) fn step_on(&mut self, batch: Option<&T::Batch>) -> Result<Option<StepReport>, Error> {
        let replicas = self.run.replicas.clone();
        telling(replicas.as_ref().map(|replicas| &*replicas.communicator), || self.try_step(batch))
    }

    fn try_step(&mut self, batch: Option<&T::Batch>) -> Result<Option<StepReport>, Error> {
        self.run.ready()?;
        // A part without samples counts as no part.
        let batch = batch.filter(|batch| !batch.is_empty());
        let (samples, shape) = (batch.map(Batch::len), batch.map_or(0, Batch::shape_key));
        let largest = match &self.run.replicas {
            Some(replicas) => replicas.largest(self.run.state.step, samples, shape)?,
            None => samples.map(|samples| (samples, shape)),
        };
        let Some(largest) = largest else { return Ok(None) };
        if self.run.replicas.is_none() && batch.is_none_or(|batch| batch.weight().count() == 0) {
            return Err(Error::NothingToLearn { step: self.run.state.next_step() });
        }
        self.step_within(batch, largest).map(Some)
    }

    /// Takes one step whose largest part has this number of samples and this shape. Only a replica may have no part itself.
    fn step_within(&mut self, batch: Option<&T::Batch>, largest: (usize, u64)) -> Result<StepReport, Error> {
        self.edit()?;
        self.watch.begin_step();
        let Some(mut recovery) = self.recovery.take() else { return self.step_once(batch, largest) };
        let begun = Instant::now();
        let mut last = begun;
        let mut ended = None;
        let (samples, shape) = largest;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let work = |(): &(), setting: &mut Setting| {
                last = Instant::now();
                self.agree_and_attempt(batch, setting).map_err(|error| set_aside(error, &mut ended))
            };
            recovery.run_shared(samples, shape, (), work, Attempted::prove)
        }));
        self.recovery = Some(recovery);
        let outcome = outcome.unwrap_or_else(|panic| resume_unwind(panic));
        let recovered = outcome.map_err(|stopped| match stopped {
            Stopped::Exhausted(exhausted) => {
                let mut report = exhausted.report;
                if let (Some(planner), Some(plan)) = (&self.planner, &self.plan) {
                    explain(planner, plan, &self.plans, self.limit, &mut report);
                }
                Error::Exhausted { step: self.run.state.next_step(), report: Box::new(report) }
            }
            Stopped::Other(error) => ended.unwrap_or(error),
        })?;
        let failures = recovered.tries.len();
        let lost_seconds = if failures > 0 { last.duration_since(begun).as_secs_f64() } else { 0.0 };
        self.commit(recovered.value, failures, lost_seconds, recovered.waited)
    }

    fn step_once(&mut self, batch: Option<&T::Batch>, largest: (usize, u64)) -> Result<StepReport, Error> {
        let mut setting = self.setting(largest);
        let device = self.run.settings.device.clone();
        let mut ended = None;
        let work = || self.agree_and_attempt(batch, &mut setting).map_err(|error| set_aside(error, &mut ended));
        let outcome = attempt(&device, work, Attempted::prove);
        match outcome {
            AttemptOutcome::Done(attempted) => self.commit(attempted, 0, 0.0, Duration::ZERO),
            AttemptOutcome::Failed(failure) => Err(Error::Memory(failure)),
            AttemptOutcome::Other(error) => Err(ended.unwrap_or(error)),
        }
    }

    /// Attempts a step with `setting`, or with the setting that the replicas agree on instead.
    fn agree_and_attempt(&mut self, batch: Option<&T::Batch>, setting: &mut Setting) -> Result<Attempted, Error> {
        self.watch.begin_attempt();
        let share = self.share(batch, setting)?;
        let offload = setting.offload;
        match self.run.replicas.clone() {
            // If one replica has no room for the state, the attempt fails on all.
            Some(replicas) => replicas.all(replicas.caught(|| {
                self.run.keep_state_on_host(offload);
                Ok(())
            }))?,
            None => self.run.keep_state_on_host(offload),
        }
        let attempted = self.attempt(batch, share, *setting)?;
        if let Some(replicas) = &self.run.replicas {
            // If one replica lacks memory, all try again.
            let peak = replicas.prove(|probe| attempted.prove(probe), self.watch.peak_bytes())?;
            self.watch.note_highest_peak(peak);
        }
        Ok(attempted)
    }

    fn attempt(&self, batch: Option<&T::Batch>, share: Share, setting: Setting) -> Result<Attempted, Error> {
        let ranges = match batch {
            Some(batch) => Split::new(batch.len(), setting.micro_batch)?.ranges().collect(),
            None => vec![],
        };
        let whole = ranges.len() == 1;
        let parts = batch.into_iter().flat_map(|batch| {
            ranges.iter().map(move |range| {
                let part = if whole { Part::Whole(batch) } else { Part::Slice(batch.slice(range.clone())) };
                (part.batch().weight(), part)
            })
        });
        // A part in which no token carries a loss has no mean loss and adds nothing.
        let parts = parts.filter(|(weight, _)| weight.count() > 0);
        let plan = plan_for(&self.plans, setting);
        let mut evidence = vec![];
        let mut attempted = match &self.staged {
            None => self.run.attempt(share, parts, |model, device, part: &Part<'_, T::Batch>| {
                let pass = Pass::planned(model, device, &plan, self.draws_random);
                let loss = self.task.loss(&pass, part.batch());
                evidence.extend(pass.into_evidence()?);
                Ok(loss)
            })?,
            Some(staged) => {
                let parts: Vec<_> = parts.collect();
                let run = &self.run;
                let inputs = Inputs {
                    task: &self.task,
                    staged,
                    plan: &plan,
                    draws_random: self.draws_random,
                    state: run.state,
                    share,
                    loss_scale: run.scaler.state().scale,
                    guard: run.guard.as_ref(),
                };
                run.attempt_with(share, |model, statistics| {
                    let (computed, named) = (staged.compute)(&inputs, model, statistics, &parts)?;
                    evidence = named;
                    Ok(computed)
                })?
            }
        };
        attempted.evidence = evidence;
        Ok(attempted)
    }

    /// The part of a batch that is computed here. With several replicas they agree on it, and on `setting`.
    fn share(&self, batch: Option<&T::Batch>, setting: &mut Setting) -> Result<Share, Error> {
        let own = batch.map_or(Weight::Samples(0), Batch::weight);
        let Some(replicas) = &self.run.replicas else { return Ok(Share::whole(own)) };
        let samples = batch.map_or(0, Batch::len);
        let agreed = replicas.ready(self.run.state, own.count(), samples, *setting)?;
        *setting = agreed.setting;
        if agreed.weight == 0 {
            return Err(Error::NothingToLearn { step: self.run.state.next_step() });
        }
        let total = match own {
            Weight::Samples(_) => Weight::Samples(agreed.weight),
            Weight::Tokens(_) => Weight::Tokens(agreed.weight),
        };
        Ok(Share { total, own, first_micro_batch: agreed.first_micro_batch })
    }

    fn commit(
        &mut self,
        attempted: Attempted,
        failures: usize,
        lost_seconds: f64,
        waited: Duration,
    ) -> Result<StepReport, Error> {
        let report = self.run.commit(attempted, failures, lost_seconds, pauses(&mut self.recovery, waited))?;
        Ok(self.end_step(report))
    }

    fn end_step(&self, report: StepReport) -> StepReport {
        self.watch.end_step();
        StepReport { peak_bytes: self.watch.peak_bytes(), ..report }
    }

    /// Completes an update that ran out of memory, after the caller has made room: updated parameters stay, and the others follow. It
    /// waits for memory as long as a step does. This call alone finishes a step that returned [`Error::Unfinished`]; do not pass its
    /// batch again.
    ///
    /// # Errors
    /// [`Error::Unfinished`] again, and [`Error::NoUpdate`] if there is nothing to finish.
    pub fn complete_update(&mut self) -> Result<StepReport, Error> {
        let report = self.run.complete_update(pauses(&mut self.recovery, Duration::ZERO))?;
        Ok(self.end_step(report))
    }

    /// The settings of the next attempt at a batch with this number of samples and this shape.
    pub(super) fn setting(&self, (samples, shape): (usize, u64)) -> Setting {
        match &self.recovery {
            Some(recovery) => recovery.setting(samples, shape),
            None => {
                let micro_batch = self.micro_batch.unwrap_or(usize::MAX).min(samples.max(1));
                Setting { micro_batch, plan: 0, offload: false }
            }
        }
    }
}

/// The pauses of one update of a batch that has already `waited`, within the patience of `recovery`. Without a recovery there are none.
pub(super) fn pauses(recovery: &mut Option<Recovery>, waited: Duration) -> impl FnMut(&Failure) -> bool + '_ {
    let mut pauses = Pauses::after(waited);
    move |failure| recovery.as_mut().is_some_and(|recovery| recovery.pause(&mut pauses, failure))
}
