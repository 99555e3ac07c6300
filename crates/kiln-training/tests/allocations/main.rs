//! Memory that really runs out: on CubeCL's CPU device, whose requests for pages this binary's allocator refuses.
#![allow(clippy::unwrap_used, reason = "a test ends at what goes wrong")]

#[path = "../common/mod.rs"]
mod common;
mod lost;
mod pages;
mod run;
mod steps;
mod tasks;
