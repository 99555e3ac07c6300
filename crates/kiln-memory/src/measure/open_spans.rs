//! Peaks of overlapping spans that share one peak counter.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The spans that are open on one counter. The counter has one peak, which is reset when a span opens. Before that, its value is noted in
/// all spans that are already open, so that no span loses a peak.
#[derive(Debug, Default)]
pub(super) struct OpenSpans(Mutex<Vec<Arc<AtomicU64>>>);

impl OpenSpans {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// Opens a span whose highest bytes are `live` so far. `reset` begins a new peak of the counter and returns the old one.
    pub(super) fn open(&self, live: impl FnOnce() -> u64, reset: impl FnOnce() -> u64) -> Arc<AtomicU64> {
        let mut open = self.lock();
        raise(&open, reset());
        let span = Arc::new(AtomicU64::new(live()));
        open.push(span.clone());
        span
    }

    /// Begins a new peak of the counter.
    pub(super) fn rebase(&self, reset: impl FnOnce() -> u64) {
        raise(&self.lock(), reset());
    }

    /// Notes a reading in all open spans.
    pub(super) fn note(&self, bytes: u64) {
        raise(&self.lock(), bytes);
    }

    pub(super) fn close(&self, span: &Arc<AtomicU64>) {
        self.lock().retain(|open| !Arc::ptr_eq(open, span));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<AtomicU64>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn raise(open: &[Arc<AtomicU64>], bytes: u64) {
    for span in open {
        span.fetch_max(bytes, Relaxed);
    }
}
