//! Stages that run on threads of their own and hand tensors to each other.

mod coroutine;
mod graph;
mod hand_over;
mod hop;
mod outcome;
mod part;
mod run;
mod sync;
mod turns;
mod worker;

pub use hop::Hop;
pub use outcome::{Ran, Stopped};
pub use run::{Pipeline, Way};
