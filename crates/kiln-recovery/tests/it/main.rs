//! The crate's integration tests, one module for each topic.
#![allow(clippy::unwrap_used, reason = "a failing test may panic")]

mod attempt;
mod decisions;
mod messages;
mod patience;
mod recovery;
mod saved;
mod sizes;
