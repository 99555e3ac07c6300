//! The program's commands as a user calls them.
#![allow(clippy::unwrap_used, reason = "a test ends at what goes wrong")]

mod bad_input;
mod classify;
mod compress;
#[cfg(unix)]
mod kill;
#[cfg(feature = "mpi")]
mod mpi;
mod parallel;
mod plan;
#[cfg(unix)]
mod report;
mod runs;
mod segment;
mod support;
