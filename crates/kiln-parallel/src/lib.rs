//! Training on several devices for any burn program: model stages, replicas, sharded optimizer state.
//!
//! *Architecture invariant*: this crate knows no model, no optimizer and no task. It sees modules, tensors, closures, and numbers of bytes
//! and seconds.

mod error;
mod pipeline;
mod reduce;
mod schedule;

pub use error::Error;
#[cfg(feature = "mpi")]
pub use reduce::Mpi;
#[cfg(feature = "cuda")]
pub use reduce::Nccl;
pub use reduce::{
    BUCKET_BYTES, Communicator, Local, Nested, Number, Ownership, Status, Verdict, Vote, agree, hand_out, sum_gradients,
};
pub use schedule::{Action, Schedule};
