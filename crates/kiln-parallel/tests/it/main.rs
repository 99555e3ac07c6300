//! The integration tests of kiln-parallel.
#![allow(clippy::unwrap_used, reason = "a test ends at what goes wrong")]

mod communicators;
#[path = "../conformance/mod.rs"]
mod conformance;
