//! Evaluation of a model on all batches of a data set.

use burn::tensor::Device;

use super::events::Evaluation;
use super::trainer::Trainer;
use crate::batch::Batch;
use crate::error::Error;
use crate::pass::Passes;
use crate::source::BatchSource;
use crate::task::Task;

impl<T: Task> Trainer<T> {
    /// Evaluates the model on all batches of `data`, without autodiff. The device holds at most as many samples at once as a micro-batch
    /// of the next step has.
    ///
    /// # Errors
    /// Those of [`evaluate`].
    pub fn evaluate<S>(&self, data: &S) -> Result<Evaluation, Error>
    where
        S: BatchSource<Batch = T::Batch> + ?Sized,
    {
        let at_once = |batch: &T::Batch| self.setting(batch.len(), batch.shape_key()).micro_batch;
        let passes = Passes::on(self.device()).streamed(self.run.streamed.as_ref());
        let metrics = self.task.evaluate(self.model(), data, &passes, at_once)?;
        let state = self.state();
        Ok(Evaluation { step: state.step, epochs: state.epoch, metrics })
    }
}

/// Evaluates `model` on all batches of `data`, without autodiff, on whole batches. If memory runs out, it halves the number of samples at
/// once and continues.
///
/// # Errors
/// Those of the data, [`Error::Memory`] when a single sample does not fit, and [`Error::Lost`].
pub fn evaluate<T, S>(task: &T, model: &T::Model, data: &S, device: &Device) -> Result<Vec<(&'static str, f64)>, Error>
where
    T: Task,
    S: BatchSource<Batch = T::Batch> + ?Sized,
{
    task.evaluate(model, data, &Passes::on(device), |_| usize::MAX)
}

/// Evaluates as [`evaluate`], with at most `micro_batch` samples of a batch on the device at once. The numbers are those of a run with
/// this micro-batch.
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
    task.evaluate(model, data, &Passes::on(device), |_| micro_batch)
}
