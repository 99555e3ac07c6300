//! The thread that copies batches to the device ahead of the consumer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use crossbeam::channel::{Receiver, unbounded};

use crate::caught::caught;
use crate::error::Error;
use crate::loader::budget::{Budget, Decoding};

use super::idle_threads::Running;

use super::workers::{Made, Workers};

/// Copies a batch to the device; called with every batch, in order.
pub(crate) type CopyBatch<O> = Arc<dyn Fn(O) -> Result<O, Error> + Send + Sync>;

/// A thread that copies batches to the device before the consumer asks for them. The bytes that wait are bounded.
///
/// Backends on CubeCL run the work of each thread on a stream of its own, so that the copy overlaps with the step before. The thread
/// outlives the epoch, and copies for the next.
pub(crate) struct DevicePrefetch<O> {
    copied: Option<Receiver<(Made<O>, Decoding)>>,
    depth: Budget,
    /// The flag and the budget that wake waiting workers when the epoch ends.
    cancelled: Arc<AtomicBool>,
    budget: Budget,
    thread: Running,
}

impl<O: Send + 'static> DevicePrefetch<O> {
    /// Starts the thread, or one that waits.
    ///
    /// # Errors
    /// [`Error::Thread`] when the system has none left.
    pub(crate) fn start(mut workers: Workers<O>, copy: CopyBatch<O>, depth: u64) -> Result<Self, Error> {
        let (depth, (cancelled, budget)) = (Budget::new(depth, 0, u64::MAX), workers.cancelled());
        let (sender, copied) = unbounded(); // the budget bounds it
        let (room, cancel) = (depth.clone(), cancelled.clone());
        let thread = Running::start(move || {
            while let Some(made) = workers.take() {
                // One batch is always admitted, however large.
                let Some(room) = room.admit_image(made.bytes, 0, &cancel) else { return };
                let copy = |batch| caught(|| copy(batch), |message| Error::DevicePrefetchPanic { message });
                let made = Made { batch: made.batch.and_then(copy), ..made };
                if sender.send((made, room)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { copied: Some(copied), depth, cancelled, budget, thread })
    }

    pub(crate) fn take(&mut self) -> Option<Made<O>> {
        let (made, _room) = self.copied.as_ref()?.recv().ok()?;
        Some(made)
    }
}

impl<O> Drop for DevicePrefetch<O> {
    fn drop(&mut self) {
        self.cancelled.store(true, SeqCst);
        self.copied = None;
        self.depth.wake();
        self.budget.wake();
        self.thread.wait(); // panics are caught inside
    }
}
