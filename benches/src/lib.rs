//! The reference pipelines, and the harness that measures them: `cargo xtask bench` and `cargo xtask gpu`.
//!
//! - [`pipelines`]: settings, tasks and data of ResNet and GPT.
//! - [`mod@bench`]: whole steps against burn's own loop, and single functions.
//! - [`gpu`]: the numbered list of checks and measurements on a card.
//! - The criterion benches are in `benches/`, the same work in PyTorch in `peers/`, results with their provenance in `results/`.

pub mod atomic;
pub mod bench;
pub mod cache;
mod card;
pub mod device;
pub mod fixture_data;
pub mod fixtures;
pub mod gpu;
pub mod heap;
pub mod host;
pub mod libdevice;
pub mod output;
pub mod pipelines;
pub mod process;
pub mod profile;
mod provenance;
pub mod units;
pub mod usage;

pub use heap::HEAP;
