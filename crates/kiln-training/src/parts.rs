//! Work without gradients on batches, in parts that fit into memory.

use burn::tensor::Device;
use kiln_recovery::{AttemptOutcome, attempt};

use crate::batch::{Batch, Part};
use crate::error::Error;

/// Runs `work` on the batches, with at most `at_once` samples of a batch on the device. When memory runs out it halves that number and
/// continues. `done` gets each part and its result, in order. Batches without a readable sample are skipped.
pub(crate) fn in_parts<B: Batch, R>(
    batches: impl Iterator<Item = Result<B, Error>>,
    device: &Device,
    at_once: impl Fn(&B) -> usize,
    mut work: impl FnMut(&B) -> Result<R, Error>,
    mut done: impl FnMut(&B, R) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut room = usize::MAX;
    for batch in batches {
        let batch = match batch {
            Err(Error::Data(kiln_data::Error::NothingLeft { .. })) => continue,
            batch => batch?,
        };
        let samples = batch.len();
        let mut next = 0;
        while next < samples {
            let range = next..samples.min(next.saturating_add(room.min(at_once(&batch)).max(1)));
            let part =
                if range.len() == samples { Part::Whole(&batch) } else { Part::Slice(batch.slice(range.clone())) };
            match attempt(device, || work(part.batch()), |_, _| {}) {
                AttemptOutcome::Done(result) => {
                    done(part.batch(), result)?;
                    next = range.end;
                }
                AttemptOutcome::Failed(failure) if range.len() > 1 => {
                    room = range.len() / 2;
                    tracing::warn!("evaluation: {failure}; continuing with {room} samples at once");
                }
                AttemptOutcome::Failed(failure) => return Err(Error::Memory(failure)),
                AttemptOutcome::Other(error) => return Err(error),
            }
        }
    }
    Ok(())
}
