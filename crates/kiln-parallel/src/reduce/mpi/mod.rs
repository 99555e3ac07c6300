//! Replicas in processes, on one machine or several, by MPI.

mod message;
mod replica;
mod rounds;
mod transfer;

pub use replica::Mpi;
