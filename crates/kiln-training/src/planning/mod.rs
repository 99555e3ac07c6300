//! The one planner: how a step is taken so that it fits into a memory budget.

mod budget;
mod checkpointing;
mod planner;
mod recorded;

pub use budget::MemoryBudget;
pub use checkpointing::Checkpointing;
pub use planner::{Planner, StepPlan};

pub(crate) use planner::plan_for;
pub(crate) use recorded::{RecordedStep, StepKind};
