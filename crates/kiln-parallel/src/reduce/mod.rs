//! Sums over replicas, and what each replica owns of the optimizer state.

mod communicator;

pub use communicator::Communicator;
