use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;

use crossbeam::channel::{Receiver, unbounded};

use crate::Error;
use crate::budget::{Budget, Decoding};
use crate::worker::message;
use crate::workers::{Made, Workers};

/// What is done with every batch on a thread of its own, in order, ahead of the consumer: copying it to the device.
pub(crate) type Finish<O> = Arc<dyn Fn(O) -> Result<O, Error> + Send + Sync>;

/// A thread that finishes batches before they are asked for, while no more than a number of bytes of them wait.
///
/// On backends that run each thread's work on a stream of its own (all CubeCL ones), what `finish` copies to the device overlaps
/// with the step before.
pub(crate) struct Ahead<O> {
    finished: Option<Receiver<(Made<O>, Decoding)>>,
    depth: Budget,
    /// The workers' own flag and budget: what they wait for ends with this.
    cancelled: Arc<AtomicBool>,
    budget: Budget,
    thread: Option<JoinHandle<()>>,
}

impl<O: Send + 'static> Ahead<O> {
    pub(crate) fn start(mut workers: Workers<O>, finish: Finish<O>, depth: u64) -> Self {
        let (depth, (cancelled, budget)) = (Budget::new(depth, 0), workers.cancelled());
        let (sender, finished) = unbounded(); // the budget bounds it
        let (room, cancel) = (depth.clone(), cancelled.clone());
        let thread = std::thread::spawn(move || {
            while let Some(made) = workers.take() {
                // One batch is always admitted, however large.
                let Some(room) = room.decode(made.bytes, 0, &cancel) else { return };
                let finish = |batch| {
                    let panicked = |panic| Err(Error::FinishPanic { message: message(panic) });
                    catch_unwind(AssertUnwindSafe(|| finish(batch))).unwrap_or_else(panicked)
                };
                let made = Made { batch: made.batch.and_then(finish), ..made };
                if sender.send((made, room)).is_err() {
                    return;
                }
            }
        });
        Self { finished: Some(finished), depth, cancelled, budget, thread: Some(thread) }
    }

    pub(crate) fn take(&mut self) -> Option<Made<O>> {
        let (made, _room) = self.finished.as_ref()?.recv().ok()?;
        Some(made)
    }
}

impl<O> Drop for Ahead<O> {
    fn drop(&mut self) {
        self.cancelled.store(true, SeqCst);
        self.finished = None;
        self.depth.wake();
        self.budget.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // panics were caught inside
        }
    }
}
