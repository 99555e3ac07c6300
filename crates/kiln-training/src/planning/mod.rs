//! The one planner: how a step is taken so that it fits into a memory budget.

mod budget;
mod checkpointing;
mod divide;
mod host_memory;
mod planned_optimizer;
mod planner;
mod recorded;
mod remedies;
mod stage_plan;

pub use budget::MemoryBudget;
pub use checkpointing::Checkpointing;
pub use planned_optimizer::PlannedOptimizer;
pub use planner::{Planner, StepPlan};
pub use remedies::{Remedy, StepChange};
pub use stage_plan::{DeviceLayout, StageLoad, StagePlan};

pub(crate) use planner::plan_for;
pub(crate) use recorded::{RecordedStep, StepKind};
