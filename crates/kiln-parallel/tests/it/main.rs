//! The integration tests of kiln-parallel.

mod cluster;
mod communicators;
#[path = "../conformance/mod.rs"]
mod conformance;
mod failures;
mod hand_over;
mod model;
mod pipeline;
mod simulation;
mod split;
