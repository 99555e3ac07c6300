use std::io;
use std::path::PathBuf;

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be written.
    #[error("cannot write '{path}'")]
    Write {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// A step cannot be recorded at these batch sizes.
    #[error("recorded at batch sizes {} and {}, expected two different ones, the smaller first, of at least 1", batches[0], batches[1])]
    Batch {
        /// The sizes.
        batches: [usize; 2],
    },
    /// A program that burn's capture device cannot record.
    #[error("the step cannot be recorded: {operation} in '{path}': {reason}")]
    Record {
        /// What was recorded last.
        operation: String,
        /// The module it was in.
        path: String,
        /// What burn said.
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
    /// A batch that a step cannot be predicted for.
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
        /// What is wrong.
        reason: &'static str,
    },
}
