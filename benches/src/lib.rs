//! The harness that measures the reference pipelines: `cargo xtask bench` and `cargo xtask gpu`.
//!
//! - [`mod@bench`]: whole steps against burn's own loop, and single functions.
//! - [`gpu`]: the numbered list of checks and measurements on a card.
//! - The criterion benches are in `benches/`, the same work in PyTorch in `peers/`, results with their provenance in `results/`.
//!
//! The pipelines themselves are in kiln-cli.

pub mod bench;
pub mod fixture_data;
pub mod gpu;
mod locked;
mod provenance;
