//! The one planner: how a step is taken so that it fits into a memory budget.

mod budget;
mod by_rows;
mod cuts;
mod divide;
mod exact;
mod gpu;
mod host_memory;
mod nothing_fits;
mod planner;
mod recompute;
mod recorded;
mod remedies;
mod stage_plan;
mod step_plan;
mod traffic;

pub use budget::MemoryBudget;
pub use exact::Exact;
pub use planner::Planner;
pub use recompute::Recompute;
pub use remedies::{Remedy, StepChange};
pub use stage_plan::{DeviceLayout, StageLoad, StagePlan};
pub use step_plan::{PlannedOptimizer, StepPlan};

pub(crate) use by_rows::Asked;
pub(crate) use cuts::Cuts;
pub(crate) use gpu::typical;
pub(crate) use host_memory::group_path;
pub(crate) use planner::plan_for;
pub(crate) use recorded::{RecordedStep, StepKind};
pub(crate) use stage_plan::RunPlan;
