//! Training on several devices for any burn program: model stages, replicas, sharded optimizer state.
//!
//! *Architecture invariant*: this crate knows no model, no optimizer and no task. It sees modules, tensors, closures, and numbers of bytes
//! and seconds.

mod error;
mod pipeline;
mod reduce;
mod schedule;

pub use error::Error;
pub use pipeline::{Hop, Pipeline, Ran, Stopped, Way};
#[cfg(feature = "mpi")]
pub use reduce::Mpi;
pub use reduce::{
    BUCKET_BYTES, Communicator, Local, Nested, Number, Ownership, Status, Verdict, Vote, agree, hand_out, sum_gradients,
};
pub use schedule::{
    Action, BlockCost, DeviceLimit, Load, Schedule, SplitOptions, StageCost, Stages, Timeline, Work, cluster, simulate,
};
