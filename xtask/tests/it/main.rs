//! The program's commands as a user calls them, and rules for the workspace's own sources.
#![allow(clippy::unwrap_used, reason = "a test ends at what goes wrong")]

mod bad_input;
mod bench;
mod circles;
mod classify;
mod compress;
mod edges;
mod gpu;
#[cfg(unix)]
mod kill;
#[cfg(feature = "mpi")]
mod mpi;
mod openings;
mod parallel;
mod plan;
mod segment;
mod source;
mod support;
