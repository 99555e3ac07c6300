//! The lock by which tests run one at a time.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Lets one test run at a time: the device's random numbers belong to the process, and results depend on the seed.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}
