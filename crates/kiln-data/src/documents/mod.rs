//! Texts of different lengths, each a sample: the set, what is learned of each text, and batches.

mod batch;
mod learned;
mod set;
mod token_batch;

pub use batch::{DocumentBatch, DocumentTensors};
pub use set::Documents;
pub use token_batch::TokenBatch;
