//! The error of this crate.

use std::io;
use std::path::PathBuf;

/// The errors of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be written.
    #[error("cannot write '{path}'")]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A step cannot be recorded at these batch sizes.
    #[error("recorded at batch sizes {} and {}, expected two different ones, the smaller first, of at least 1", batches[0], batches[1])]
    Batch {
        /// The sizes.
        batches: [usize; 2],
    },
    /// A step that burn's capture device cannot record, or that panics.
    #[error("the step cannot be recorded: {operation} in '{path}': {reason}")]
    Record {
        /// The last recorded operation.
        operation: String,
        /// The module it was in.
        path: String,
        /// The reason, in burn's words where it is from burn.
        reason: String,
    },
    /// Operations that depend on the batch size.
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
    /// A batch size without a prediction.
    #[error("a batch of {batch} samples, expected at least 1, and less than 2^42 bytes in each tensor")]
    BatchSize {
        /// The size.
        batch: usize,
    },
    /// Segments that do not fit the chain.
    #[error("blocks {from}..{to} of a chain of {blocks} cannot be checkpointed: {reason}")]
    Plan {
        /// The first block.
        from: usize,
        /// The block behind the last.
        to: usize,
        /// Blocks of the chain.
        blocks: usize,
        /// The reason.
        reason: &'static str,
    },
}
