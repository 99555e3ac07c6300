use std::ops::ControlFlow;
use std::path::PathBuf;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use kiln_data::{Loader, TrainTest};

use crate::{Checkpoints, Error, StepReport, Trainer};

/// What a model is trained to do on batches of one kind.
pub trait Task {
    /// The model.
    type Model: Module;
    /// A batch on the host.
    type Batch: Send + 'static;

    /// The mean loss over the batch, a scalar to differentiate. `device` is the model's.
    fn loss(&self, model: &Self::Model, batch: &Self::Batch, device: &Device) -> Tensor<1>;

    /// Sums over the batch from a model without autodiff; what they are is up to the task,
    /// as a tensor of one dimension.
    fn measure(&self, model: &Self::Model, batch: &Self::Batch, device: &Device) -> Tensor<1>;

    /// What the sums over a whole data set mean, as named figures.
    fn figures(&self, sums: &[f64]) -> Vec<(&'static str, f64)>;
}

/// Figures of a model on a data set.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// Optimizer steps the model had taken.
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
    /// An epoch ended and the model was measured.
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

/// Takes the steps that are left of the run. The model is measured at the end of every epoch and of the run; a
/// checkpoint is saved then, every `save_every` steps (0: not in between), and when `observe` breaks.
///
/// A run that was interrupted anywhere and goes on from a checkpoint reports the same events.
///
/// # Errors
/// Those of [`Trainer::step`], [`Checkpoints::save`] and the loaders.
pub fn fit<T: Task>(
    task: &T,
    trainer: &mut Trainer<T::Model>,
    data: &TrainTest<Loader<T::Batch>>,
    checkpoints: &Checkpoints,
    save_every: u64,
    observe: &mut dyn FnMut(&Event) -> ControlFlow<()>,
) -> Result<Finish, Error> {
    let total = trainer.total_steps();
    while trainer.state().step < total {
        let at = trainer.state();
        for batch in data.train.epoch(at.epoch, at.batch) {
            let batch = batch?;
            let report = trainer.step(|model, device| task.loss(model, &batch, device))?;
            let stop = observe(&Event::Step(report)).is_break();
            let at = trainer.state();
            if at.step == total || at.batch == data.train.batches() {
                break; // saved below, after the measurement
            }
            if stop || (save_every > 0 && at.step.is_multiple_of(save_every)) {
                let saved = Event::Saved(checkpoints.save(trainer)?);
                if observe(&saved).is_break() || stop {
                    return Ok(Finish::Stopped);
                }
            }
        }
        trainer.end_epoch();
        let evaluation = Event::Evaluated(evaluate(task, trainer, &data.test)?);
        let stop = observe(&evaluation).is_break();
        let saved = Event::Saved(checkpoints.save(trainer)?);
        if observe(&saved).is_break() || stop {
            return Ok(if trainer.state().step < total { Finish::Stopped } else { Finish::Complete });
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
        let read = task.measure(&model, &batch?, &device).try_into_data();
        let read = read.map_err(|e| Error::Device { step: step as u64, reason: e.to_string() })?;
        sums.resize(read.num_elements(), 0.0);
        sums.iter_mut().zip(read.iter::<f64>()).for_each(|(sum, value)| *sum += value);
    }
    Ok(task.figures(&sums))
}
