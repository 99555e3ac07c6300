//! One attempt at some work, and the check that its result was written.

mod attempt;
mod probe;

pub use attempt::{AttemptOutcome, attempt, forget, reclaim, renewed};
pub use probe::Probe;
