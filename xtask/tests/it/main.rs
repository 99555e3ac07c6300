//! Commands of maintainers, and rules for the workspace's own sources.
#![allow(clippy::unwrap_used, reason = "a test ends at what goes wrong")]

mod bench;
mod circles;
mod edges;
mod figures;
mod gpu;
mod links;
mod openings;
mod packages;
mod quotes;
mod source;
mod support;
#[path = "../../src/tokens.rs"]
mod tokens;
mod unused;
mod versions;
