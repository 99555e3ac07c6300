//! The harness that measures the reference pipelines: `cargo xtask bench`, `predictions`, `same-bits`, `failures` and `gpu`.
//!
//! - [`mod@bench`]: whole steps against burn's own loop, and single functions.
//! - [`predictions`]: predicted against measured memory of steps that are drawn at random.
//! - [`same_bits`]: exact runs in many ways, which end with the same weights.
//! - [`failures`]: small runs in which memory is refused at random places.
//! - [`gpu`]: the numbered list of checks and measurements on a GPU.
//! - The criterion benches are in `benches/`, equal work in PyTorch is in `peers/`, results with their provenance are in `results/`.
//!
//! The pipelines themselves are in kiln-cli.

pub mod bench;
pub mod failures;
pub mod fixture_data;
pub mod gpu;
mod lines;
mod locked;
pub mod predictions;
mod provenance;
pub mod same_bits;
