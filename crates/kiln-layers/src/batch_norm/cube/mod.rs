//! Batch norm, residual and activation in CubeCL: two launches in each direction, each of which reads input and gradient once.

mod activation;
mod backward;
mod forward;

pub(super) use backward::backward;
pub(super) use forward::{again, forward};
