//! Locks of what stages share.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks also after a panic of another holder: the run has then failed.
pub(super) fn lock<V>(mutex: &Mutex<V>) -> MutexGuard<'_, V> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The value, also after a panic of a holder.
pub(super) fn into_inner<V>(mutex: Mutex<V>) -> V {
    mutex.into_inner().unwrap_or_else(PoisonError::into_inner)
}
