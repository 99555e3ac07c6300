//! Sums over replicas, and the part of the optimizer state that each replica owns.

mod agreement;
mod communicator;
mod gradients;
mod hand_out;
mod local;
#[cfg(feature = "mpi")]
mod mpi;
#[cfg(feature = "cuda")]
mod nccl;
mod nested;
mod ownership;
mod parameters;
mod pieces;
mod rendezvous;

pub use agreement::{Number, Status, Verdict, Vote, agree};
pub use communicator::Communicator;
pub use gradients::sum_gradients;
pub use hand_out::hand_out;
pub use local::Local;
#[cfg(feature = "mpi")]
pub use mpi::Mpi;
#[cfg(feature = "cuda")]
pub use nccl::Nccl;
pub use nested::Nested;
pub use ownership::Ownership;
pub use pieces::BUCKET_BYTES;
