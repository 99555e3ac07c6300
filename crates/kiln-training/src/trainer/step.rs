//! A step: attempts at the gradients of a batch until one succeeds, and then the update.

use std::time::{Duration, Instant};

use bytesize::ByteSize;
use kiln_accumulation::{RunningStatistics, RunningSums, Weight, scale_of_rows};
use kiln_checkpointing::Streamed;
use kiln_memory::Growth;
use kiln_precision::ScaledGradients;
use kiln_recovery::{
    AttemptOutcome, Attempts, DeviceErrors, ExhaustionReport, MemoryHolder, Setting, attempt, reclaim,
};

use super::trainer::Trainer;
use crate::batch::Batch;
use crate::error::Error;
use crate::growth::MemoryGrowth;
use crate::planning::plan_for;
use crate::replicas::{Relay, WholeBatch};
use crate::task::Task;
use crate::transaction::{
    Attempted, Boundary, Computation, Computed, Lost, MicroBatches, Share, StepReport, Undo, Waiting, probe_attempt,
    probe_stored, with_store,
};

/// The number of holders, and of suggestions, in a report.
const NAMED: usize = 5;

impl<T: Task> Trainer<T> {
    /// Takes one step on `batch`. The batch is cut into micro-batches as planned, and tried again with less if memory runs out. The step
    /// is taken once, whatever the number of attempts.
    ///
    /// The order: submit pending operations to the device; for each micro-batch seed it from (seed, step, index), forward, scale,
    /// backward, add in f32; read loss and gradient norm, to which every gradient contributes; unscale, clip by global norm and update,
    /// one chunk of the parameters after the other. If gradients are not finite at a loss scale that can fall, the step is skipped: only
    /// the position and the scale change.
    ///
    /// # Errors
    /// Before the update. The run stays as it was, except that an edit of the model stays if it was made:
    /// - the batch: [`Error::NothingToLearn`] for one without a loss. [`Error::Incomplete`], [`Error::TooMuch`] and
    ///   [`Error::Accumulation`] for parts whose weights do not add up to its own, and for a loss of several elements.
    /// - the model: [`Error::NoGradients`], [`Error::NotFinite`], [`Error::Checkpointing`]. [`Error::Precision`] for gradients that cannot
    ///   be unscaled. [`Error::Edit`] if it cannot be edited, [`Error::InvalidSetting`] if the edit changes which parameters are trained
    ///   and the optimizer's state is divided.
    /// - the schedule: [`Error::InvalidSetting`] if it needs the number of steps and the run has none.
    /// - memory: [`Error::Exhausted`] if it ran out and nothing is left to try. [`Error::Memory`] if it ran out in a run without recovery,
    ///   or in an edit for longer than the patience.
    /// - the device: [`Error::Device`], [`Error::Lost`], and [`Error::Memory`] for one that is lost.
    /// - stages and replicas: [`Error::Bypassed`], [`Error::Parallel`], and [`Error::Replica`] if another replica failed.
    ///
    /// In the update: [`Error::Unfinished`] if memory ran out for longer than the patience. [`Error::Lost`], [`Error::Memory`],
    /// [`Error::Parallel`] and [`Error::Replica`] if it ended for another reason. The step then stays to be completed: see
    /// [`complete_update`](Self::complete_update). Until that is done, each call ends with [`Error::Unfinished`].
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
        let group = self.run.group.clone();
        group.tell_end(|| self.take_step(batch))
    }

    fn take_step(&mut self, batch: Option<&T::Batch>) -> Result<Option<StepReport>, Error> {
        self.run.ready()?;
        self.refresh()?;
        // A part without samples counts as no part.
        let batch = batch.filter(|batch| !batch.is_empty());
        let Some(whole) = self.run.group.whole_batch(self.run.state, batch)? else { return Ok(None) };
        self.edit()?;
        self.watch.begin_step();
        let mut attempts = self.first_attempt(&whole);
        let begun = Instant::now();
        loop {
            let before = begun.elapsed();
            match self.attempt_gradients(batch, &whole, &mut attempts) {
                Ok(attempted) => return self.commit(attempted, &attempts, before).map(Some),
                Err(error) => self.retry_after(&mut attempts, error)?,
            }
        }
    }

    /// The attempts at a batch, none of which was made yet.
    fn first_attempt(&self, whole: &WholeBatch) -> Attempts {
        match &self.recovery {
            Some(recovery) => recovery.start(whole.samples, whole.shape),
            None => Attempts::new(self.setting(whole.samples, whole.shape)),
        }
    }

    /// One attempt at a step, which changes nothing: forward and backward passes, the sum over replicas, the norm of the gradients, and the
    /// proof that all of it was written. Replicas agree after each of these, so that an attempt succeeds on all or fails on all.
    fn attempt_gradients(
        &mut self,
        batch: Option<&T::Batch>,
        whole: &WholeBatch,
        attempts: &mut Attempts,
    ) -> Result<Attempted, Error> {
        let group = self.run.group.clone();
        self.watch.begin_attempt();
        let (setting, first_micro_batch) = group.setting(whole, attempts.setting())?;
        attempts.agree_on(setting);
        group.all(group.caught(|| {
            self.run.settings.device.flush()?;
            self.run.keep_state_on_host(setting.offload);
            self.run.streamed.iter().for_each(Streamed::discard);
            Ok(())
        }))?;

        let others = self.staged.iter().flat_map(|staged| staged.division.other_devices());
        let errors = DeviceErrors::on(others.chain([&self.run.settings.device]));
        let mut undo = Undo::new(&self.run.model);
        let (leaves, statistics) = undo.parts();
        let mut share = share(batch, whole, first_micro_batch);
        let relay = match self.in_order {
            true => group.relay(batch.map_or(0, Batch::len), share.own.count() > 0, self.device())?,
            false => None,
        };
        share.first_sample = relay.as_ref().map_or(0, |relay| relay.first_sample);
        let streamed = self.run.streamed.as_ref();
        let gradients = || self.gradients(batch, share, setting, (leaves, statistics), relay.as_ref());
        let own = group.caught(|| with_store(streamed, gradients));
        let own = match relay {
            Some(relay) => relay.finish(own),
            None => own,
        };
        let Computed { gradients, loss, scale, micro_batches, named } = group.sum(leaves, own, statistics)?;
        let step = self.run.state.next_step();
        let norm = group.caught(|| {
            let probed = match streamed {
                Some(streamed) => probe_stored(streamed, leaves, gradients, scale, loss, step)?,
                None => {
                    let probed = ScaledGradients::new(gradients, scale)?.probe_with(leaves, vec![loss]);
                    probed.map_err(|e| Error::at(step, e))?
                }
            };
            errors.none()?;
            Ok(probed)
        });
        let (probed, read) = group.all(norm)?;
        let peak = group.check_written(|probe| probe_attempt(statistics, &named, probe), self.watch.peak_bytes())?;
        self.watch.note_highest_peak(peak);
        let loss = read.first().copied().unwrap_or(f64::NAN);
        let loss_scale = self.run.scaler.state().scale;
        Ok(Attempted { probed, loss, loss_scale, micro_batches, statistics: undo.keep() })
    }

    /// Forward and backward passes of all micro-batches. A replica without a part of the batch has no gradients.
    fn gradients(
        &self,
        batch: Option<&T::Batch>,
        share: Share,
        setting: Setting,
        (leaves, statistics): (&T::Model, &mut RunningStatistics),
        relay: Option<&Relay>,
    ) -> Result<Computed, Error> {
        let loss_scale = self.run.scaler.state().scale;
        if share.own.count() == 0 {
            let scale = if self.in_order { scale_of_rows(share.total, loss_scale) } else { loss_scale };
            return Ok(Computed::nothing(self.device(), scale));
        }
        if self.draws_random && self.run.group.in_this_process() > 1 {
            relay.iter().for_each(|relay| relay.wait());
        }
        let inputs = Computation {
            task: &self.task,
            micro_batches: MicroBatches::new(batch, setting.micro_batch)?,
            plan: &plan_for(&self.plans, setting),
            staged: self.staged.as_ref(),
            draws_random: self.draws_random,
            read_once: &self.read_once,
            in_order: self
                .in_order
                .then(|| relay.map(Relay::sums).map_or_else(RunningSums::default, RunningSums::relayed)),
            relay,
            streamed: self.run.streamed.as_ref(),
            state: self.run.state,
            share,
            loss_scale,
            device: self.device(),
            guard: self.run.guard.as_ref(),
        };
        let computed = (self.compute)(&inputs, leaves, statistics)?;
        inputs.at(Boundary::Probe)?;
        Ok(computed)
    }

    /// Prepares the next attempt after one that failed for lack of memory. Everything that it held is dropped by now.
    ///
    /// # Errors
    /// The error itself if it is no lack of memory, [`Error::Exhausted`] if nothing is left to try, and [`Error::Memory`] in a run without
    /// recovery.
    fn retry_after(&mut self, attempts: &mut Attempts, error: Error) -> Result<(), Error> {
        let failure = error.into_failure()?;
        reclaim(self.device());
        let Some(recovery) = &mut self.recovery else { return Err(Error::Memory(failure)) };
        recovery.after(attempts, &failure).map_err(|mut report| {
            self.explain(&mut report);
            Error::Exhausted { step: self.run.state.next_step(), report }
        })
    }

    /// Updates the parameters with the gradients of an attempt, which began after `before`.
    fn commit(&mut self, attempted: Attempted, attempts: &Attempts, before: Duration) -> Result<StepReport, Error> {
        // The peak of a pool is that of its readings, which miss the true maximum.
        let peak = self.watch.highest_peak().filter(|_| self.learns_peaks);
        self.recovery.iter_mut().for_each(|recovery| recovery.succeeded(attempts, peak));
        let failures = attempts.failed().len();
        let seconds = if failures > 0 { before.as_secs_f64() } else { 0.0 };
        let lost = Lost { failures, seconds, waited: attempts.waited() };
        let report = match self.run.streamed.clone() {
            Some(streamed) => self.commit_in_store(&streamed, attempted, lost)?,
            None => self.run.commit(attempted, lost, self.recovery.as_mut())?,
        };
        Ok(self.end_step(report))
    }

    fn end_step(&mut self, report: StepReport) -> StepReport {
        if let Some(growth) = self.watch.end_step() {
            self.note_growth(growth);
        }
        if let Some(pressure) = self.pressure.look() {
            self.is_pressed = true;
            if self.run.group.is_first() {
                tracing::warn!("{pressure}");
            }
        }
        StepReport { peak_bytes: self.watch.peak_bytes(), ..report }
    }

    /// Notes a growth, and tells it. Replicas of a process share its heap.
    fn note_growth(&mut self, growth: Growth) {
        let plan = self.plan.as_ref();
        let prediction = plan.and_then(|plan| self.predict(plan.micro_batch).ok());
        let micro_batches = plan.map_or(1, |plan| plan.batch.div_ceil(plan.micro_batch.max(1)));
        let growth = MemoryGrowth::new(growth, micro_batches, prediction.as_ref());
        if self.run.group.is_first() {
            tracing::warn!("{growth}");
        }
        self.growth = Some(growth);
    }

    /// Completes an update that ran out of memory, after the caller has made room: updated parameters stay, and the others follow. It
    /// waits for memory as long as a step does. This call alone finishes a step that returned [`Error::Unfinished`]; do not pass its
    /// batch again.
    ///
    /// # Errors
    /// [`Error::Unfinished`] again, and [`Error::NoUpdate`] if there is nothing to finish.
    pub fn complete_update(&mut self) -> Result<StepReport, Error> {
        let mut waiting = Waiting::after(Duration::ZERO, self.recovery.as_mut());
        let report = self.run.complete_update(&mut waiting)?;
        Ok(self.end_step(report))
    }

    /// The setting of the next attempt at a batch with this number of samples and this shape.
    pub(super) fn setting(&self, samples: usize, shape: u64) -> Setting {
        match &self.recovery {
            Some(recovery) => recovery.setting(samples, shape),
            None => {
                let micro_batch = self.micro_batch.unwrap_or(usize::MAX).min(samples.max(1));
                Setting { micro_batch, plan: 0, offload: false }
            }
        }
    }

    /// Edits the model before its next step, unless that is done already. It waits for memory as long as a step does.
    pub(super) fn edit(&mut self) -> Result<(), Error> {
        let step = self.run.state.step;
        let Some(edit) = self.edit.as_mut().filter(|_| self.edited != Some(step)) else { return Ok(()) };
        let (model, optimizer) = (&self.run.model, &self.run.optimizer);
        let device = self.run.settings.device.clone();
        let mut waiting = Waiting::after(Duration::ZERO, self.recovery.as_mut());
        let edited = loop {
            let edited = attempt(
                &device,
                || edit(step, model, optimizer),
                |edited, probe| {
                    if let Some((model, _)) = edited {
                        probe.module(model);
                    }
                },
            );
            match edited {
                AttemptOutcome::Done(edited) => break edited,
                AttemptOutcome::Failed(failure) if waiting.for_memory(&failure) => {}
                AttemptOutcome::Failed(failure) => return Err(Error::Memory(failure)),
                AttemptOutcome::Other(error) => return Err(error),
            }
        };
        if let Some((model, optimizer)) = edited {
            let model = match &self.staged {
                Some(staged) => staged.place(model),
                None => model,
            };
            let owned = |model| self.run.group.owned(model);
            if owned(&model) != owned(&self.run.model) {
                // State that the new owners lack would begin again at zero.
                let (value, expected) =
                    ("other parameters that require gradients", "the same, where replicas divide the state");
                return Err(Error::InvalidSetting { name: "edit of the model", value: value.into(), expected });
            }
            (self.run.model, self.run.optimizer) = (model, optimizer);
        }
        self.edited = Some(step);
        Ok(())
    }

    /// Adds to a report the predicted memory of the last attempt, and the changes that would reduce it.
    fn explain(&self, report: &mut ExhaustionReport) {
        let (Some(planner), Some(plan)) = (&self.planner, &self.plan) else { return };
        let Some(setting) = report.tries.last().map(|tried| tried.setting) else { return };
        let planner = planner.planner_for(plan);
        let Ok(step) = planner.step_in(plan.precision) else { return };
        let micro_batch = setting.micro_batch.min(plan.batch);
        let limit = self.limit.or(report.device.total).unwrap_or(0);
        let profile = planner.profile(micro_batch, plan.batch);
        let trace = step.under(&plan_for(&self.plans, setting), micro_batch, plan.batch, profile.kernels);
        let Ok(explained) = trace.and_then(|trace| Ok(trace.explain(micro_batch, limit, profile)?)) else { return };
        let kinds = explained.breakdown.0.iter().filter(|(_, bytes)| **bytes > 0);
        let mut holders: Vec<MemoryHolder> =
            kinds.map(|(kind, bytes)| MemoryHolder { name: format!("{kind}, predicted"), bytes: *bytes }).collect();
        holders.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
        holders.truncate(NAMED);
        report.holders = holders;
        let suggestion = |suggestion: &kiln_memory::Suggestion| {
            let fits = if suggestion.fits { ", which fits" } else { "" };
            format!("{}: {} less{fits}", suggestion.name, ByteSize(suggestion.saved_bytes))
        };
        report.help = explained.suggestions.iter().take(NAMED).map(suggestion).collect();
        let peak = ByteSize(explained.peak_bytes);
        report.help.push(format!("more memory: a step in micro-batches of {micro_batch} is predicted to take {peak}"));
    }
}

/// The part of a batch that is computed here.
fn share<B: Batch>(own: Option<&B>, whole: &WholeBatch, first_micro_batch: usize) -> Share {
    let own = own.map_or(Weight::Samples(0), Batch::weight);
    let total = match own {
        Weight::Samples(_) => Weight::Samples(whole.weight),
        Weight::Tokens(_) => Weight::Tokens(whole.weight),
    };
    Share { total, own, first_micro_batch, first_sample: 0 }
}
