//! A training step as a graph of operations: recorded, kept for every batch size, and rewritten for checkpoint plans.

mod capture;
mod divisible;
mod graph;
mod merge;
mod modules;
mod options;
mod passes;
mod readers;
mod record;
mod recorder;
mod rewrite;
mod stages;
mod step_trace;
mod update;
mod walk;
mod with_plan;

pub use divisible::Mixes;
pub(crate) use graph::{Detail, Kind, Use};
pub use options::{StepOptions, UpdateChunks};
pub(crate) use passes::{NONE, Passes, backward_passes};
pub use record::{Optimizers, record_step, record_step_with};
pub use recorder::Recorder;
pub use step_trace::StepTrace;
pub(crate) use step_trace::TraceRole;
pub use with_plan::Recomputed;
