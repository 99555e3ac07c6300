//! One attempt at some work, and the check that its result was written.

mod attempt;
mod graph;
mod probe;

pub use attempt::{AttemptOutcome, attempt, reclaim};
pub use graph::{forget, renewed};
pub use probe::Probe;
