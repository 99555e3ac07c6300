use std::ops::{ControlFlow, Range};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::time::Instant;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use kiln_accumulation::{Split, Weight};
use kiln_data::{Loader, TrainTest};
use kiln_recovery::{Setting, Stopped};

use crate::{Checkpoints, Error, Evaluation, StepReport, Trainer, evaluate};

/// What a model is trained to do on batches of one kind.
pub trait Task {
    /// The model.
    type Model: Module;
    /// A batch on the host.
    type Batch: Send + 'static;

    /// Number of samples of a batch.
    fn samples(&self, batch: &Self::Batch) -> usize;

    /// What the mean loss over a batch is a mean of: samples, or tokens that carry a loss.
    fn weight(&self, batch: &Self::Batch) -> Weight;

    /// Some of the samples of a batch.
    fn slice(&self, batch: &Self::Batch, samples: Range<usize>) -> Self::Batch;

    /// The mean loss over the batch, a scalar to differentiate. `device` is the model's. The model may compute in 16 bits;
    /// the loss is taken in f32.
    fn loss(&self, model: &Self::Model, batch: &Self::Batch, device: &Device) -> Tensor<1>;

    /// The same under one of the task's checkpoint plans, or with inputs of its segments on the host; the result must be the same.
    /// Plan 0 is that of [`loss`](Self::loss).
    fn loss_under(&self, model: &Self::Model, batch: &Self::Batch, device: &Device, setting: Setting) -> Tensor<1> {
        let _ = setting;
        self.loss(model, batch, device)
    }

    /// Batches of one shape but for the number of samples share a number: what fits is remembered by it.
    fn bucket(&self, batch: &Self::Batch) -> u64 {
        let _ = batch;
        0
    }

    /// Sums over the batch from a model without autodiff; what they are is up to the task,
    /// as a tensor of one dimension.
    fn measure(&self, model: &Self::Model, batch: &Self::Batch, device: &Device) -> Tensor<1>;

    /// What the sums over a whole data set mean, as named figures.
    fn figures(&self, sums: &[f64]) -> Vec<(&'static str, f64)>;
}

/// What happens in a run, in order.
#[derive(Clone, Debug)]
pub enum Event {
    /// A step was taken.
    Step(StepReport),
    /// The model was measured.
    Evaluated(Evaluation),
    /// A checkpoint is about to be written: what was reported so far belongs to it, and should be as durable.
    Saving,
    /// A checkpoint is on disk.
    Saved(PathBuf),
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Finish {
    /// All steps were taken.
    Complete,
    /// The observer asked to stop; a checkpoint was saved.
    Stopped,
}

/// When a run is measured and saved besides the end of every epoch and of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Every {
    /// Measure the model every so many steps; 0: not in between.
    pub evaluate: u64,
    /// Save a checkpoint every so many steps; 0: not in between.
    pub save: u64,
}

impl Every {
    fn due(every: u64, step: u64) -> bool {
        every > 0 && step.is_multiple_of(every)
    }
}

/// One step on `batch`, in micro-batches of the size that the trainer's settings name. A trainer that
/// [recovers](Trainer::recover) tries again, with what its recovery says, when memory runs out: the step is taken once,
/// and its result does not depend on how often it was tried; smaller micro-batches give the result of that split (see
/// [`Trainer`]).
///
/// # Errors
/// Those of [`Trainer::step_in_parts`], [`Error::NothingToLearn`] for a batch without a loss, and [`Error::Exhausted`] when
/// nothing is left to try.
pub fn step<T: Task>(task: &T, trainer: &mut Trainer<T::Model>, batch: &T::Batch) -> Result<StepReport, Error> {
    let (step, total, samples) = (trainer.state().next_step(), task.weight(batch), task.samples(batch));
    if total.count() == 0 {
        return Err(Error::NothingToLearn { step });
    }
    let parts = |micro_batch: usize| {
        let split = Split::new(samples, micro_batch)?;
        let whole = split.len() == 1;
        let ranges: Vec<_> = split.ranges().collect();
        let parts = ranges.into_iter().map(move |range| {
            let part = if whole { Part::Whole(batch) } else { Part::Slice(task.slice(batch, range)) };
            (task.weight(part.batch()), part)
        });
        // A part without a token that carries a loss has no mean loss, and nothing to add.
        Ok::<_, Error>(parts.filter(|(weight, _)| weight.count() > 0))
    };
    let Some(mut recovery) = trainer.recovery.take() else {
        let parts = parts(trainer.micro_batch().unwrap_or(usize::MAX))?;
        return trainer.step_in_parts(total, parts, |model, device, part| task.loss(model, part.batch(), device));
    };
    let begun = Instant::now();
    let mut last = begun;
    let run = || {
        trainer.ready().map_err(Stopped::Passed)?;
        let attempt = |(): &(), setting: Setting| {
            last = Instant::now();
            trainer.try_parts(total, parts(setting.micro_batch)?, |model, device, part: &Part<'_, T::Batch>| {
                task.loss_under(model, part.batch(), device, setting)
            })
        };
        recovery.run(samples, task.bucket(batch), (), attempt, |tried, probe| trainer.evidence(tried, probe))
    };
    let outcome = catch_unwind(AssertUnwindSafe(run));
    trainer.recovery = Some(recovery);
    let outcome = outcome.unwrap_or_else(|panic| resume_unwind(panic));
    let recovered = outcome.map_err(|stopped| match stopped {
        Stopped::Exhausted(exhausted) => Error::Exhausted { step, report: Box::new(exhausted.report) },
        Stopped::Passed(error) => error,
    })?;
    let (failures, lost_seconds) = (recovered.tries.len(), last.duration_since(begun).as_secs_f64());
    let lost_seconds = if failures > 0 { lost_seconds } else { 0.0 };
    trainer.commit(recovered.value, failures, lost_seconds)
}

/// A batch as it came, or some of its samples.
pub(crate) enum Part<'a, B> {
    Whole(&'a B),
    Slice(B),
}

impl<B> Part<'_, B> {
    pub(crate) fn batch(&self) -> &B {
        match self {
            Self::Whole(batch) => batch,
            Self::Slice(batch) => batch,
        }
    }
}

/// Takes the steps that are left of the run. The model is [measured](crate::evaluate), and a checkpoint saved, at the end of
/// every epoch and of the run, and as `every` says; a checkpoint is also saved when `observe` breaks, and when the run ends with
/// an error that leaves it whole.
///
/// A run that was interrupted anywhere and goes on from a checkpoint reports the same events. So does one that
/// ended with [`Error::Unfinished`] and is called again: it goes on with the update.
///
/// # Errors
/// Those of [`step`], [`evaluate`](crate::evaluate), [`Checkpoints::save`] and the loaders, and [`Error::NothingRead`].
pub fn fit<T: Task>(
    task: &T,
    trainer: &mut Trainer<T::Model>,
    data: &TrainTest<Loader<T::Batch>>,
    checkpoints: &Checkpoints,
    every: Every,
    observe: &mut dyn FnMut(&Event) -> ControlFlow<()>,
) -> Result<Finish, Error> {
    let saved = trainer.state().step;
    let mut fit = Fit { task, trainer, data, checkpoints, every, observe, saved };
    fit.steps().inspect_err(|error| fit.rescue(error))
}

/// A run that goes on.
struct Fit<'a, T: Task> {
    task: &'a T,
    trainer: &'a mut Trainer<T::Model>,
    data: &'a TrainTest<Loader<T::Batch>>,
    checkpoints: &'a Checkpoints,
    every: Every,
    observe: &'a mut dyn FnMut(&Event) -> ControlFlow<()>,
    /// Steps of the newest checkpoint.
    saved: u64,
}

impl<T: Task> Fit<'_, T> {
    fn steps(&mut self) -> Result<Finish, Error> {
        let waiting = self.trainer.ready().is_err();
        let at = self.trainer.state();
        if waiting || at.due || at.batch >= self.data.train.batches() {
            let report = if waiting { Some(self.trainer.complete_update()?) } else { None };
            if let (Some(stopped), _) = self.after(report)? {
                return Ok(stopped);
            }
        }
        let data = self.data;
        while self.trainer.state().step < self.trainer.total_steps() {
            let began = self.trainer.state();
            for batch in data.train.epoch(began.epoch, began.batch) {
                let report = match batch {
                    // Bad samples are left out, as the loader's settings say and its list of them reports.
                    Err(last @ kiln_data::Error::NothingLeft { .. }) => {
                        self.trainer.pass_over_batch();
                        let at = self.trainer.state();
                        if at.batch < data.train.batches() {
                            continue;
                        }
                        if began.batch == 0 && at.step == began.step {
                            return Err(Error::NothingRead { epoch: at.epoch, last });
                        }
                        None
                    }
                    batch => Some(step(self.task, self.trainer, &batch?)?),
                };
                match self.after(report)? {
                    (Some(stopped), _) => return Ok(stopped),
                    (None, true) => break,
                    (None, false) => {}
                }
            }
        }
        Ok(Finish::Complete)
    }

    /// What is due after a step, of which the caller may have the report: the model is measured, the epoch ends, the run is
    /// saved. Whether the run stops here, and whether the epoch or the run ended.
    fn after(&mut self, report: Option<StepReport>) -> Result<(Option<Finish>, bool), Error> {
        let mut stop = report.is_some_and(|report| (self.observe)(&Event::Step(report)).is_break());
        let (at, total) = (self.trainer.state(), self.trainer.total_steps());
        let epoch_ends = at.batch >= self.data.train.batches();
        let ends = epoch_ends || at.step == total;
        if ends || Every::due(self.every.evaluate, at.step) {
            let measured = evaluate(self.task, self.trainer, &self.data.test)?;
            let evaluation = Evaluation { epochs: at.epoch + u64::from(epoch_ends), ..measured };
            stop |= (self.observe)(&Event::Evaluated(evaluation)).is_break();
        }
        if epoch_ends {
            self.trainer.end_epoch();
        }
        self.trainer.nothing_due();
        if ends || stop || Every::due(self.every.save, at.step) {
            stop |= self.save()?;
        }
        let stopped = (stop && at.step < total).then_some(Finish::Stopped);
        Ok((stopped, ends))
    }

    /// Whether the observer asks to stop.
    fn save(&mut self) -> Result<bool, Error> {
        let stop = (self.observe)(&Event::Saving).is_break();
        let path = self.checkpoints.save(self.trainer)?;
        self.saved = self.trainer.state().step;
        Ok((self.observe)(&Event::Saved(path)).is_break() || stop)
    }

    /// Keeps what was trained since the newest checkpoint when the run ends with an error that is none of the device's.
    fn rescue(&mut self, error: &Error) {
        let lost = matches!(error, Error::Lost(_) | Error::Device { .. } | Error::Save { .. });
        if lost || self.trainer.ready().is_err() || self.trainer.state().step == self.saved {
            return;
        }
        if let Err(error) = self.save() {
            tracing::warn!("{error}");
        }
    }
}
