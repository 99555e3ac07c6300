//! The lock of the random numbers that the threads of a process share.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// burn's devices of one kind have one stream of random numbers per process. Code that seeds it and draws from it holds this lock, so
/// that replicas in other threads do not draw in between.
static STREAM: Mutex<()> = Mutex::new(());

/// Holds the stream until the guard is dropped.
pub(crate) fn hold_random_numbers() -> MutexGuard<'static, ()> {
    STREAM.lock().unwrap_or_else(PoisonError::into_inner)
}
