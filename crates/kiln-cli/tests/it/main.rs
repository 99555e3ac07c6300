//! The program's commands as a user calls them.
#![allow(clippy::unwrap_used, reason = "a test ends at what goes wrong")]

mod bad_input;
mod classify;
mod compress;
mod export;
#[cfg(unix)]
mod kill;
#[cfg(feature = "mpi")]
mod mpi;
mod parallel;
mod plan;
mod predict;
mod sample;
mod segment;
mod support;
