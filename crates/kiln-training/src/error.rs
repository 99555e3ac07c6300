//! Everything that can end a training run.

use std::path::PathBuf;

use bytesize::ByteSize;
use kiln_accumulation::Weight;

/// Everything that can end a training run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting that no run can have.
    #[error("{name} is {value}, expected {expected}")]
    InvalidSetting {
        /// The setting's name.
        name: &'static str,
        /// The value that was given.
        value: String,
        /// The accepted values.
        expected: &'static str,
    },
    /// The loss or a gradient is not a finite number; the model is as it was before the step.
    #[error("step {step}: the {what} is {value}, expected a finite number; try a lower learning rate")]
    NotFinite {
        /// The step that was not taken, counted from 1.
        step: u64,
        /// "loss" or "norm of the gradients".
        what: &'static str,
        /// Its value.
        value: f64,
    },
    /// No parameter of the model received a gradient.
    #[error("step {step}: no parameter has a gradient, expected a loss computed from the model on an autodiff device")]
    NoGradients {
        /// The step that was not taken, counted from 1.
        step: u64,
    },
    /// The device could not return its results.
    #[error("step {step}: the device failed: {reason}")]
    Device {
        /// The step that was not taken, counted from 1.
        step: u64,
        /// The device's message.
        reason: String,
    },
    /// Memory ran out; the model is as it was before the step.
    #[error(transparent)]
    Memory(#[from] kiln_recovery::Failure),
    /// Memory ran out for every micro-batch and checkpoint plan; the model is as it was before the step.
    #[error("step {step}: {report}")]
    Exhausted {
        /// The step that was not taken, counted from 1.
        step: u64,
        /// The attempts, and changes that would help.
        report: Box<kiln_recovery::ExhaustionReport>,
    },
    /// Memory ran out while parameters were updated. The gradients are kept:
    /// [`complete_update`](crate::Trainer::complete_update) finishes the step.
    #[error(
        "step {step}: {left} of {parameters} parameters are still to be updated{}, expected complete_update before \
         anything else",
        failure.as_ref().map(|failure| format!(" ({failure})")).unwrap_or_default()
    )]
    Unfinished {
        /// The step that is under way, counted from 1.
        step: u64,
        /// Parameters that are left.
        left: usize,
        /// Parameters that have a gradient.
        parameters: usize,
        /// The failure of the update. `None` if another operation was called before the update was completed.
        failure: Option<kiln_recovery::Failure>,
    },
    /// There is no unfinished update to complete.
    #[error("step {step}: no update is under way, expected one that ended with an error")]
    NoUpdate {
        /// The next step, counted from 1.
        step: u64,
    },
    /// A step cannot be recorded, or not be predicted.
    #[error(transparent)]
    Predict(#[from] kiln_memory::Error),
    /// The device is lost, or failed for another reason than memory.
    #[error("the device failed: {0}")]
    Lost(#[from] burn::tensor::ExecutionError),
    /// A memory plan needs at least three samples: it records steps on two and on three, to see how a step grows with its batch.
    #[error("the sample batch has {samples} samples, expected at least 3 to plan a step from it")]
    Sample {
        /// Samples of the batch.
        samples: usize,
    },
    /// No way to take a step stays within the budget.
    #[error(
        "a step does not fit into {}: the least is {} with micro-batches of {}; its largest part is {largest} with {}",
        ByteSize(*limit_bytes), ByteSize(least.0), least.1, ByteSize(*largest_bytes)
    )]
    NothingFits {
        /// The budget.
        limit_bytes: u64,
        /// The lowest predicted peak in bytes, and its micro-batch.
        least: (u64, usize),
        /// The largest category of memory in that step.
        largest: String,
        /// Bytes of that category.
        largest_bytes: u64,
    },
    /// A step has a tensor that is larger than any buffer of the device.
    #[error(
        "a step has a tensor of {}, and the device makes no buffer above {}: expected {}",
        ByteSize(*bytes), ByteSize(*largest_buffer), micro_batch.map_or("a smaller model, as no micro-batch helps".into(), |size|
        format!("micro-batches of {size} or less"))
    )]
    BufferTooLarge {
        /// Bytes of the largest tensor.
        bytes: u64,
        /// Bytes of the device's largest buffer.
        largest_buffer: u64,
        /// A micro-batch without such a tensor.
        micro_batch: Option<usize>,
    },
    /// A budget of the whole process has no room for a step.
    #[error(
        "a budget of {} has no room for a step: the process takes {} itself, expected more than that",
        ByteSize(*budget_bytes), ByteSize(*process_bytes)
    )]
    NoRoom {
        /// The budget.
        budget_bytes: u64,
        /// Bytes that the process takes beside a step.
        process_bytes: u64,
    },
    /// The trainer was built without a prediction of its steps.
    #[error(
        "the trainer has no prediction of its steps, expected a model that can be recorded and no with_prediction(false)"
    )]
    NoPrediction,
    /// A precision that no step was recorded in.
    #[error("no step was recorded in that precision, expected one of the planner's")]
    NoPrecision,
    /// The free memory of a device is not known.
    #[error(
        "the free memory of {device} is not known, expected a budget in bytes (NVIDIA's GPUs tell it with the feature nvml)"
    )]
    UnknownMemory {
        /// The device.
        device: String,
    },
    /// The model could not be made. The source is the error of the function that makes it.
    #[error("the model cannot be made")]
    Model(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// No parameter of the model is at or below a path.
    #[error("no parameter's path begins with '{path}', expected one of {known}, or a longer path below these")]
    UnknownPath {
        /// The path that was given.
        path: String,
        /// The first names of the paths of all parameters, separated by commas.
        known: String,
    },
    /// The model could not be edited before a step; the run is as it was. The source is the error of the edit.
    #[error("step {step}: the model cannot be edited")]
    Edit {
        /// The step that was not taken, counted from 1.
        step: u64,
        /// The error that the edit returned.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Another replica of the model failed; this one is as it was before the step.
    #[error("replica {rank} failed: {reason}")]
    Replica {
        /// The replica that failed, counted from zero.
        rank: usize,
        /// Its error.
        reason: String,
    },
    /// A tensor with a gradient reached a later stage of the model without going through a chain of blocks.
    #[error(
        "a tensor that is made in stage {stage} is used in a later one, expected it to go there as a part of the chain's value, for \
         example `pass.chain(blocks, (x, skip), ..)`"
    )]
    Bypassed {
        /// The stage that makes the tensor, counted from zero.
        stage: usize,
    },
    /// Stages or replicas could not work together.
    #[error(transparent)]
    Parallel(#[from] kiln_parallel::Error),
    /// Blocks could not run under a checkpoint plan.
    #[error(transparent)]
    Checkpointing(#[from] kiln_checkpointing::Error),
    /// The rules of recovery are out of range.
    #[error(transparent)]
    Recovery(#[from] kiln_recovery::Error),
    /// The run has no directory for checkpoints.
    #[error("the run has no checkpoints, expected with_checkpoints before it is saved or resumed")]
    NoCheckpoints,
    /// The data has another size than the one that the run began with.
    #[error("the run began with {was} samples, and the data has {now}: expected the same data")]
    OtherData {
        /// Samples when the run began.
        was: usize,
        /// Samples now.
        now: usize,
    },
    /// The data gives another number of batches or steps than at the start of the run: the data, the batch size or the length of the run
    /// has changed.
    #[error("the run has {was} {unit}, and now it would have {now}: expected the same data, batch size and length")]
    OtherLength {
        /// "batches an epoch" or "steps".
        unit: &'static str,
        /// The number when the run began.
        was: u64,
        /// The number now.
        now: u64,
    },
    /// A batch source gave fewer batches than it says.
    #[error("epoch {epoch} ended after {batches} of {expected} batches, expected as many as the source says")]
    ShortEpoch {
        /// The epoch, counted from zero.
        epoch: u64,
        /// The batches that it gave.
        batches: usize,
        /// The batches that [`BatchSource::batches`](crate::BatchSource::batches) says.
        expected: usize,
    },
    /// A batch source of another kind than kiln-data's failed.
    #[error("a batch could not be loaded: {reason}")]
    BatchSource {
        /// The reason.
        reason: String,
    },
    /// The parts of a batch weigh less than the batch.
    #[error("step {step}: the batch lacks {missing}, expected parts that add up to its weight")]
    Incomplete {
        /// The step that was not taken, counted from 1.
        step: u64,
        /// The missing weight.
        missing: Weight,
    },
    /// The parts of a batch weigh more than the batch.
    #[error(
        "step {step}: a part of {fed} is left when the batch is complete, expected parts that add up to its weight"
    )]
    TooMuch {
        /// The step that was not taken, counted from 1.
        step: u64,
        /// The first part that is left.
        fed: Weight,
    },
    /// No sample of a batch carries a loss.
    #[error("step {step}: no token of the batch carries a loss, expected at least one target that is not ignored")]
    NothingToLearn {
        /// The step that was not taken, counted from 1.
        step: u64,
    },
    /// A batch was cut or weighed wrong.
    #[error(transparent)]
    Accumulation(#[from] kiln_accumulation::Error),
    /// A precision or a loss scale cannot be used.
    #[error(transparent)]
    Precision(#[from] kiln_precision::Error),
    /// A batch could not be loaded.
    #[error(transparent)]
    Data(#[from] kiln_data::Error),
    /// No sample of a whole epoch could be read.
    #[error("epoch {epoch}: no batch had a sample that could be read: {last}")]
    NothingRead {
        /// The epoch, counted from zero.
        epoch: u64,
        /// The error of the last batch.
        last: kiln_data::Error,
    },
    /// A checkpoint could not be written; the previous ones are untouched.
    #[error("cannot save checkpoint '{path}': {reason}")]
    Save {
        /// The checkpoint's directory.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A checkpoint could not be read.
    #[error("cannot load checkpoint '{path}': {reason}")]
    Load {
        /// The checkpoint's directory.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

impl Error {
    /// The failure, if the error is a lack of memory on this replica, after which the step can be tried again. Otherwise the error.
    ///
    /// An error of the group must not be tried again, although its text may quote another replica's lack of memory.
    pub(crate) fn into_failure(self) -> Result<kiln_recovery::Failure, Self> {
        match self {
            Self::Parallel(_) | Self::Replica { .. } => Err(self),
            error => kiln_recovery::classify(&error).filter(|failure| failure.is_recoverable()).ok_or(error),
        }
    }

    /// The error of kiln-accumulation about a micro-batch of `step`.
    pub(crate) fn of_accumulation(step: u64, error: kiln_accumulation::Error) -> Self {
        match error {
            kiln_accumulation::Error::NoGradients => Self::NoGradients { step },
            error => Self::Accumulation(error),
        }
    }

    /// The error of kiln-precision about the gradients of `step`.
    pub(crate) fn at(step: u64, error: kiln_precision::Error) -> Self {
        match error {
            kiln_precision::Error::NoGradients => Self::NoGradients { step },
            kiln_precision::Error::Device(reason) => Self::Device { step, reason },
            error => Self::Precision(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_group_is_no_lack_of_memory() {
        let reason = "out of device memory allocating 64 bytes";
        let of_group = Error::Replica { rank: 1, reason: reason.into() };
        assert!(kiln_recovery::classify(&of_group).is_some(), "by its text, it would be tried again");
        assert!(matches!(of_group.into_failure(), Err(Error::Replica { rank: 1, .. })));
        assert!(matches!(Error::NoPrediction.into_failure(), Err(Error::NoPrediction)));
        let own = Error::Lost(burn::tensor::ExecutionError::with_context(reason));
        assert_eq!(own.into_failure().map(|failure| failure.bytes()).ok(), Some(Some(64)));
    }
}
