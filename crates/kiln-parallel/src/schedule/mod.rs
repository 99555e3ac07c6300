//! The order in which stages work on micro-batches, and how blocks are divided among stages: pure functions without tensors.

mod action;
mod block;
mod order;
mod simulate;
mod split;
mod stages;
mod timeline;
mod units;

pub use action::Action;
pub use block::{BlockCost, DeviceLimit, SplitOptions};
pub use order::Schedule;
pub use simulate::{StageCost, simulate};
pub use stages::{Load, Stages};
pub use timeline::{Timeline, Work};
