//! The integration tests of kiln-parallel.
#![allow(clippy::unwrap_used, reason = "a test ends at what goes wrong")]

mod cluster;
mod communicators;
#[path = "../conformance/mod.rs"]
mod conformance;
#[path = "../../examples/cluster/main.rs"]
mod example;
mod failures;
mod hand_over;
mod model;
mod pipeline;
mod simulation;
mod split;
mod tables;
