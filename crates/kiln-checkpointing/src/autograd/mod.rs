//! One segment of a network: it runs without keeping activations, and again in the backward pass.

mod checkpoint;
mod devices;
mod forward;
mod graph;
mod offload;
mod replay;
mod seeds;
mod segment;
mod tensors;

pub use checkpoint::{Checkpoint, checkpoint};
pub use tensors::{TensorMap, Tensors};

pub(crate) use devices::devices_of;
pub(crate) use forward::Untracked;
pub(crate) use seeds::{derive, draw};
