//! Checkpointed segments and chains against plain runs, and the solver against brute force.
#![allow(clippy::unwrap_used, reason = "a test ends at what goes wrong")]

use kiln_memory::CountingAllocator;

mod conformance;
mod picture;
mod segments;
mod solver;
mod streamed;
mod support;

/// Counts the bytes of all tests: each of them takes its turn, see [`support::alone`].
#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator::new();
