//! Gradient checkpointing.
#[cfg(not(any(feature = "flex", feature = "cuda")))]
compile_error!("a custom backward pass names the backend's types: enable the feature `flex` or `cuda`");

mod chain;
mod checkpoint;
mod cost;
mod error;
mod first;
mod host;
mod hub;
mod measure;
mod plan;
mod random;
mod replay;
mod segment;
mod solve;
mod tensors;

pub use chain::Chain;
pub use checkpoint::{Checkpoint, checkpoint};
pub use cost::{ChainCost, Cost, Outcome};
pub use error::Error;
pub use measure::{Gauge, measure};
pub use plan::{Mode, Plan, PlanSegment};
pub use solve::{least, solve};
pub use tensors::{TensorMap, Tensors};
