//! Evaluation of a model on all batches of a data set.

use std::ops::Range;

use burn::module::Module;
use burn::tensor::Device;
use kiln_recovery::{AttemptOutcome, attempt};

use super::events::Evaluation;
use super::run::Trainer;
use crate::batch::{Batch, Part};
use crate::error::Error;
use crate::metrics::Totals;
use crate::pass::Pass;
use crate::source::BatchSource;
use crate::task::Task;

impl<T: Task> Trainer<T> {
    /// Evaluates the model on all batches of `data`, without autodiff, with at most as many samples on the device at once as a
    /// micro-batch of the next step has.
    ///
    /// # Errors
    /// Those of [`evaluate`].
    pub fn evaluate<S>(&self, data: &S) -> Result<Evaluation, Error>
    where
        S: BatchSource<Batch = T::Batch> + ?Sized,
    {
        let at_once = |batch: &T::Batch| self.setting(batch).micro_batch;
        let metrics = in_parts(&self.task, self.model(), data, self.device(), at_once)?;
        let state = self.state();
        Ok(Evaluation { step: state.step, epochs: state.epoch, metrics })
    }
}

/// Evaluates `model` on all batches of `data`, without autodiff, on whole batches; when memory runs out, on half as many samples at
/// once, and so on.
///
/// # Errors
/// Those of the data, [`Error::Memory`] when a single sample does not fit, and [`Error::Lost`].
pub fn evaluate<T, S>(task: &T, model: &T::Model, data: &S, device: &Device) -> Result<Vec<(&'static str, f64)>, Error>
where
    T: Task,
    S: BatchSource<Batch = T::Batch> + ?Sized,
{
    in_parts(task, model, data, device, |_| usize::MAX)
}

/// The same with at most `micro_batch` samples of a batch on the device at once: as a run with such micro-batches evaluates.
///
/// # Errors
/// Those of [`evaluate`].
pub fn evaluate_in_parts<T, S>(
    task: &T,
    model: &T::Model,
    data: &S,
    device: &Device,
    micro_batch: usize,
) -> Result<Vec<(&'static str, f64)>, Error>
where
    T: Task,
    S: BatchSource<Batch = T::Batch> + ?Sized,
{
    in_parts(task, model, data, device, |_| micro_batch)
}

/// With at most `at_once` samples of a batch on the device.
fn in_parts<T, S>(
    task: &T,
    model: &T::Model,
    data: &S,
    device: &Device,
    at_once: impl Fn(&T::Batch) -> usize,
) -> Result<Vec<(&'static str, f64)>, Error>
where
    T: Task,
    S: BatchSource<Batch = T::Batch> + ?Sized,
{
    let model = model.valid();
    let device = device.clone().inner();
    let mut totals = Totals::default();
    let mut room = usize::MAX;
    for batch in data.epoch(0, 0) {
        let batch = match batch {
            Err(Error::Data(kiln_data::Error::NothingLeft { .. })) => continue,
            batch => batch?,
        };
        let samples = batch.len();
        let mut next = 0;
        while next < samples {
            let part = next..samples.min(next.saturating_add(room.min(at_once(&batch)).max(1)));
            match attempt(&device, || totals_of(task, &model, &batch, part.clone(), &device), |_, _| {}) {
                AttemptOutcome::Done(part_totals) => {
                    totals.add(part_totals);
                    next = part.end;
                }
                AttemptOutcome::Failed(failure) if part.len() > 1 => {
                    room = part.len() / 2;
                    tracing::warn!("evaluation: {failure}; continuing with {room} samples at once");
                }
                AttemptOutcome::Failed(failure) => return Err(Error::Memory(failure)),
                AttemptOutcome::Other(error) => return Err(error),
            }
        }
    }
    Ok(totals.finish())
}

fn totals_of<T: Task>(
    task: &T,
    model: &T::Model,
    batch: &T::Batch,
    samples: Range<usize>,
    device: &Device,
) -> Result<Totals, Error> {
    let part = if samples.len() == batch.len() { Part::Whole(batch) } else { Part::Slice(batch.slice(samples)) };
    // A part without a token that carries a loss has no mean loss, and nothing to add.
    if part.batch().weight().count() == 0 {
        return Ok(Totals::default());
    }
    Ok(task.metrics(&Pass::plain(model, device), part.batch()).read()?)
}
