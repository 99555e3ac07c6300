//! The error of this crate.

/// The errors of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A step cannot be recorded at these batch sizes.
    #[error("recorded at batch sizes {} and {}, expected two different ones, the smaller first, of at least 1", batches[0], batches[1])]
    Batch {
        /// The sizes.
        batches: [usize; 2],
    },
    /// burn's capture device cannot record the step, or the step panics.
    #[error("the step cannot be recorded: {operation} in '{path}': {reason}")]
    Record {
        /// The last recorded operation.
        operation: String,
        /// The module that the operation is in.
        path: String,
        /// The reason, in burn's words if burn refused the step.
        reason: String,
    },
    /// The step has other operations at one batch size than at the other.
    #[error(
        "{operation} in '{path}' is another operation at a batch of {} than at {}, expected the same operations at any size",
        batches[0],
        batches[1]
    )]
    Shape {
        /// The first operation that differs.
        operation: String,
        /// The module it is in.
        path: String,
        /// The recorded sizes.
        batches: [usize; 2],
    },
    /// There is no prediction for a batch size.
    #[error("a batch of {batch} samples, expected at least 1, and less than 2^42 bytes in each tensor")]
    BatchSize {
        /// The size.
        batch: usize,
    },
    /// The segments of a plan do not fit the chain.
    #[error("blocks {from}..{to} of a chain of {blocks} cannot be checkpointed: {reason}")]
    Plan {
        /// The first block.
        from: usize,
        /// The block after the last.
        to: usize,
        /// Number of blocks of the chain.
        blocks: usize,
        /// The reason.
        reason: &'static str,
    },
}
