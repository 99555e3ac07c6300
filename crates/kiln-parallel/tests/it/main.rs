//! The integration tests of kiln-parallel.

mod communicators;
#[path = "../conformance/mod.rs"]
mod conformance;
mod hand_over;
mod model;
mod pipeline;
