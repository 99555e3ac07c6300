//! Stages that run on threads of their own and hand tensors to each other.

mod boundary;
mod graph;
mod hand_over;
mod outcome;
mod part;
mod run;
mod sync;
mod worker;

pub use boundary::StageBoundary;
pub use outcome::{PipelineOutput, Stopped};
pub use run::{Execution, Pipeline};
