//! Micro-batches against the whole batch, and the mistakes that are refused.
#![allow(clippy::unwrap_used, reason = "a test ends at what goes wrong")]

mod equivalence;
mod mistakes;
