//! Memory that really runs out: on CubeCL's CPU device, whose requests for pages this binary's allocator refuses.
#![allow(clippy::unwrap_used, reason = "a test ends at the first error")]

mod lost;
mod pages;
mod run;
mod steps;
#[path = "../it/support.rs"]
mod support;
mod tasks;
