use std::ops::Range;

use burn::module::Module;
use burn::tensor::Device;
use kiln_data::Loader;
use kiln_recovery::{Outcome, attempt};

use crate::fit::Part;
use crate::{Error, Task, Trainer};

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

/// Measures the trainer's model on all batches of `loader`, as [`measure`] does, but with no more samples on the device at
/// once than a micro-batch of the next step has.
///
/// # Errors
/// Those of [`measure`].
pub fn evaluate<T: Task>(
    task: &T,
    trainer: &Trainer<T::Model>,
    loader: &Loader<T::Batch>,
) -> Result<Evaluation, Error> {
    let state = trainer.state();
    let most = |batch: &T::Batch| match trainer.recovery() {
        Some(recovery) => recovery.setting(task.samples(batch), task.bucket(batch)).micro_batch,
        None => trainer.micro_batch().unwrap_or(usize::MAX),
    };
    let figures = in_parts(task, trainer.model(), loader, trainer.device(), most)?;
    Ok(Evaluation { step: state.step, epochs: state.epoch, figures })
}

/// Measures `model` on all batches of `loader`, without autodiff, `micro_batch` samples at once; none: whole batches. When memory
/// runs out, with half as many, and so on.
///
/// # Errors
/// Those of the loader, [`Error::Memory`] when a single sample does not fit, and [`Error::Lost`].
pub fn measure<T: Task>(
    task: &T,
    model: &T::Model,
    loader: &Loader<T::Batch>,
    device: &Device,
    micro_batch: Option<usize>,
) -> Result<Vec<(&'static str, f64)>, Error> {
    in_parts(task, model, loader, device, |_| micro_batch.unwrap_or(usize::MAX))
}

/// With at most as many samples of a batch at once as `most` says.
fn in_parts<T: Task>(
    task: &T,
    model: &T::Model,
    loader: &Loader<T::Batch>,
    device: &Device,
    most: impl Fn(&T::Batch) -> usize,
) -> Result<Vec<(&'static str, f64)>, Error> {
    let model = model.valid();
    let device = device.clone().inner();
    let mut sums: Vec<f64> = vec![];
    let mut room = usize::MAX;
    for batch in loader.epoch(0, 0) {
        let batch = match batch {
            Err(kiln_data::Error::NothingLeft { .. }) => continue,
            batch => batch?,
        };
        let samples = task.samples(&batch);
        let mut next = 0;
        while next < samples {
            let part = next..samples.min(next.saturating_add(room.min(most(&batch)).max(1)));
            match attempt(&device, || sums_of(task, &model, &batch, part.clone(), &device), |_, _| {}) {
                Outcome::Done(values) => {
                    sums.resize(values.len(), 0.0);
                    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
                    next = part.end;
                }
                Outcome::Failed(failure) if part.len() > 1 => {
                    room = part.len() / 2;
                    tracing::warn!("measuring the model: {failure}; took {room} samples at once");
                }
                Outcome::Failed(failure) => return Err(Error::Memory(failure)),
                Outcome::Passed(error) => return Err(error),
            }
        }
    }
    Ok(task.figures(&sums))
}

fn sums_of<T: Task>(
    task: &T,
    model: &T::Model,
    batch: &T::Batch,
    samples: Range<usize>,
    device: &Device,
) -> Result<Vec<f64>, Error> {
    let part = match samples.len() == task.samples(batch) {
        true => Part::Whole(batch),
        false => Part::Slice(task.slice(batch, samples)),
    };
    let read = task.measure(model, part.batch(), device).try_into_data()?;
    Ok(read.iter::<f64>().collect())
}
