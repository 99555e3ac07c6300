//! The time that a thread spends on reading files while decoders run.

use std::cell::Cell;
use std::time::Duration;

thread_local! {
    /// The time that reading took on this thread since it was last asked for.
    static READING: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Adds the time of one read on this thread.
pub(super) fn add_reading(time: Duration) {
    READING.set(READING.get() + time);
}

/// The time that reading files took on this thread since the last call. Decoders read while they decode.
pub(crate) fn take_reading() -> Duration {
    READING.take()
}
