//! The order in which stages work on micro-batches, and how blocks are divided among stages: pure functions without tensors.

mod order;
mod simulate;
mod split;
mod stages;
mod timeline;
mod units;

pub use order::Schedule;
pub(crate) use order::in_turns;
pub use simulate::{StageCost, simulate};
pub use stages::{BlockCost, DeviceLimit, Load, SplitOptions, Stages};
pub use timeline::{Action, Timeline, Work};
