//! What depends on random numbers. Those of a device belong to the process, so that these tests have one of their own and take turns.
#![allow(clippy::unwrap_used, reason = "a test ends at what goes wrong")]

use std::sync::{Mutex, MutexGuard, PoisonError};

mod drop_path;
mod precision;

fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}
