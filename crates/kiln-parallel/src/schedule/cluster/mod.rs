//! A calculator of training steps on a cluster: time, traffic and memory of a layout before anyone rents the cards.
//!
//! [`estimate`] judges one [`Layout`] of stages and replicas, [`best_layouts`] compares all that use a whole [`Cluster`]. Both are formulas
//! and a [simulation](crate::simulate) of the pipeline; nothing is measured. The guide compares them with published measurements.

mod estimate;
mod layout;
mod model;
mod network;

pub use estimate::{Estimate, Memory, best_layouts, estimate};
pub use layout::{Inside, Layout};
pub use model::Model;
pub use network::{Card, Cluster, Group, Link, Traffic};
