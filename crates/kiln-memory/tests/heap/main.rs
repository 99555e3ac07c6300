//! Tests that measure the heap. They are a binary of their own because it installs a global allocator that counts all threads.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test panics at the first failure and prints what it measured"
)]

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kiln_memory::{CountingAllocator, ReusingAllocator};

mod accuracy;
mod allocator;
mod cases;
#[path = "../lean.rs"]
mod lean;
mod operations;
mod recording;
mod reusing;
mod spans;

#[global_allocator]
pub(crate) static HEAP: CountingAllocator<ReusingAllocator> = CountingAllocator::over(ReusingAllocator::new());

/// Lets one test at a time run, after the threads of the one before are idle: the heap belongs to the whole process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for _ in 0..100 {
        let before = HEAP.live_bytes();
        std::thread::sleep(Duration::from_millis(20));
        if HEAP.live_bytes() == before {
            break;
        }
    }
    guard
}
