//! Locks of the values that stages share.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex even if another holder panicked: the run has then failed.
pub(super) fn lock<V>(mutex: &Mutex<V>) -> MutexGuard<'_, V> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the value even if a holder panicked.
pub(super) fn into_inner<V>(mutex: Mutex<V>) -> V {
    mutex.into_inner().unwrap_or_else(PoisonError::into_inner)
}
