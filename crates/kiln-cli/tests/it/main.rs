//! The program's commands as a user calls them.
#![allow(clippy::unwrap_used, reason = "a test ends at what goes wrong")]

mod bad_input;
mod bf16_parameters;
mod classify;
mod completions;
mod compress;
mod doctor;
mod exact;
mod export;
#[cfg(unix)]
mod fetch;
mod help;
mod initial_weights;
#[cfg(unix)]
mod kill;
mod llm;
#[cfg(feature = "mpi")]
mod mpi;
#[cfg(unix)]
mod names;
mod parallel;
mod peft;
mod plan;
mod predict;
#[cfg(target_os = "linux")]
mod process_budget;
#[cfg(target_os = "linux")]
mod progress;
#[cfg(unix)]
mod report;
mod resume;
mod runs;
mod sample;
mod segment;
mod smollm2;
mod store;
mod support;
