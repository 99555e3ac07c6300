use std::ops::{ControlFlow, Range};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::time::Instant;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use kiln_accumulation::{Split, Weight};
use kiln_data::{Loader, TrainTest};
use kiln_recovery::{Setting, Stopped};

use crate::{Checkpoints, Error, StepReport, Trainer};

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

/// Figures of a model on a data set.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// Steps of the run so far.
    pub step: u64,
    /// Epochs it had finished.
    pub epochs: u64,
    /// Name and value.
    pub figures: Vec<(&'static str, f64)>,
}

/// What happens in a run, in order.
#[derive(Clone, Debug)]
pub enum Event {
    /// A step was taken.
    Step(StepReport),
    /// The model was measured.
    Evaluated(Evaluation),
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
/// and its result does not depend on how often it was tried.
///
/// # Errors
/// Those of [`Trainer::step_in_parts`], [`Error::NothingToLearn`] for a batch without a loss, and [`Error::Exhausted`] when
/// nothing is left to try.
pub fn step<T: Task>(task: &T, trainer: &mut Trainer<T::Model>, batch: &T::Batch) -> Result<StepReport, Error> {
    let (step, total, samples) = (trainer.state().step, task.weight(batch), task.samples(batch));
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
enum Part<'a, B> {
    Whole(&'a B),
    Slice(B),
}

impl<B> Part<'_, B> {
    fn batch(&self) -> &B {
        match self {
            Self::Whole(batch) => batch,
            Self::Slice(batch) => batch,
        }
    }
}

/// Takes the steps that are left of the run. The model is measured, and a checkpoint saved, at the end of every epoch
/// and of the run, and as `every` says; a checkpoint is also saved when `observe` breaks.
///
/// A run that was interrupted anywhere and goes on from a checkpoint reports the same events. So does one that
/// ended with [`Error::Unfinished`] and is called again: it goes on with the update.
///
/// # Errors
/// Those of [`Trainer::step`], [`Checkpoints::save`] and the loaders.
pub fn fit<T: Task>(
    task: &T,
    trainer: &mut Trainer<T::Model>,
    data: &TrainTest<Loader<T::Batch>>,
    checkpoints: &Checkpoints,
    every: Every,
    observe: &mut dyn FnMut(&Event) -> ControlFlow<()>,
) -> Result<Finish, Error> {
    let total = trainer.total_steps();
    // What is due after a step, of which the caller may have the report: the epoch ends, the model is measured and saved.
    let mut after = |trainer: &mut Trainer<T::Model>, report: Option<StepReport>| {
        let mut stop = report.is_some_and(|report| observe(&Event::Step(report)).is_break());
        let at = trainer.state();
        let epoch_ends = at.batch >= data.train.batches();
        if epoch_ends {
            trainer.end_epoch();
        }
        let ends = epoch_ends || at.step == total;
        if ends || Every::due(every.evaluate, at.step) {
            let evaluation = evaluate(task, trainer, &data.test)?;
            stop |= observe(&Event::Evaluated(evaluation)).is_break();
        }
        if ends || stop || Every::due(every.save, at.step) {
            stop |= observe(&Event::Saved(checkpoints.save(trainer)?)).is_break();
        }
        let stopped = (stop && at.step < total).then_some(Finish::Stopped);
        Ok::<_, Error>((stopped, ends))
    };
    let waiting = trainer.ready().is_err();
    if waiting || trainer.state().batch >= data.train.batches() {
        let report = if waiting { Some(trainer.complete_update()?) } else { None };
        if let (Some(stopped), _) = after(trainer, report)? {
            return Ok(stopped);
        }
    }
    while trainer.state().step < total {
        let at = trainer.state();
        for batch in data.train.epoch(at.epoch, at.batch) {
            let report = match batch {
                // Bad samples are left out, as the loader's settings say and its list of them reports.
                Err(kiln_data::Error::NothingLeft { .. }) => {
                    trainer.pass_over_batch();
                    if trainer.state().batch < data.train.batches() {
                        continue;
                    }
                    None
                }
                batch => Some(step(task, trainer, &batch?)?),
            };
            match after(trainer, report)? {
                (Some(stopped), _) => return Ok(stopped),
                (None, true) => break,
                (None, false) => {}
            }
        }
    }
    Ok(Finish::Complete)
}

/// Measures the trainer's model on all batches of `loader`.
///
/// # Errors
/// Those of the loader, and [`Error::Device`].
pub fn evaluate<T: Task>(
    task: &T,
    trainer: &Trainer<T::Model>,
    loader: &Loader<T::Batch>,
) -> Result<Evaluation, Error> {
    let state = trainer.state();
    let figures = measure(task, trainer.model(), loader, trainer.device())?;
    Ok(Evaluation { step: state.step, epochs: state.epoch, figures })
}

/// Measures `model` on all batches of `loader`, without autodiff.
///
/// # Errors
/// Those of the loader, and [`Error::Device`].
pub fn measure<T: Task>(
    task: &T,
    model: &T::Model,
    loader: &Loader<T::Batch>,
    device: &Device,
) -> Result<Vec<(&'static str, f64)>, Error> {
    let model = model.valid();
    let device = device.clone().inner();
    let mut sums: Vec<f64> = vec![];
    for (step, batch) in loader.epoch(0, 0).enumerate() {
        let batch = match batch {
            Err(kiln_data::Error::NothingLeft { .. }) => continue,
            batch => batch?,
        };
        let read = task.measure(&model, &batch, &device).try_into_data();
        let read = read.map_err(|e| Error::Device { step: step as u64, reason: e.to_string() })?;
        sums.resize(read.num_elements(), 0.0);
        sums.iter_mut().zip(read.iter::<f64>()).for_each(|(sum, value)| *sum += value);
    }
    Ok(task.figures(&sums))
}
