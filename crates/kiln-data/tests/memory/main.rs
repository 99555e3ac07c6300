//! The tests of kiln-data that measure the heap: a binary of its own, because its allocator counts for the whole process.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod decode_memory;
mod hostile_folder;
mod hostile_images;
mod large;
mod peak_heap;

use std::sync::{Mutex, MutexGuard, PoisonError};

use kiln_memory::CountingAllocator;

#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator::new();

/// Held by every test: the allocator counts for all threads, so that one test runs at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}
