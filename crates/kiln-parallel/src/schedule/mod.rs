//! The order in which stages work on micro-batches, and how blocks are divided among stages: pure functions without tensors.

mod action;
mod order;

pub use action::Action;
pub use order::Schedule;
