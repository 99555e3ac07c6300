//! The turns that the tests take.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The device's random numbers belong to the process, and results depend on the seed: tests take turns.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}
