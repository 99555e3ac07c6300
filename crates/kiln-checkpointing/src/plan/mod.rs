//! A chain of blocks: which of them are recomputed, what that costs, and the fastest choice within a budget.

mod chain;
mod cost;
mod measure;
mod segments;
mod solve;
mod stream;
mod text;

pub use chain::{Chain, ChainSeed};
pub use cost::{ChainCost, Cost, PlanCost};
pub use measure::{MemoryUse, measure_blocks};
pub use segments::{Mode, Plan, PlanSegment};
pub use solve::{least, solve};
