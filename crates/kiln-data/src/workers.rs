use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::thread::JoinHandle;

use crossbeam::channel::{Receiver, Sender, bounded};

use crate::budget::{Budget, Queued};
use crate::loader::{Bytes, Make};
use crate::worker::{Shared, Worker, message};
use crate::{BatchPlan, Error, Sampler};

/// A batch that was made, the samples in it, the bytes it was planned to have, and the room it takes in the budget.
pub(crate) struct Made<O> {
    pub(crate) batch: Result<O, Error>,
    pub(crate) samples: usize,
    pub(crate) bytes: u64,
    pub(crate) room: Queued,
}

/// What came of a job, and how many of its samples were left out.
type Reply<O> = (Result<O, Error>, usize);

struct Pending<O> {
    reply: Receiver<Reply<O>>,
    samples: usize,
    bytes: u64,
    room: Queued,
}

struct Job<O> {
    plan: BatchPlan,
    reply: Sender<Reply<O>>,
}

/// The threads that make the batches of one epoch, which come out in order.
///
/// Each batch is a job with a reply channel of its own. Waiting for the replies in the order of the jobs keeps the
/// order whatever the workers do. A job is only handed out when a batch was taken, and there is room for the batch that it
/// makes: at most `prefetch` batches, at most half of the byte budget.
pub(crate) struct Workers<O> {
    plans: std::iter::Peekable<Box<dyn Iterator<Item = BatchPlan> + Send>>,
    bytes: Bytes,
    jobs: Option<Sender<Job<O>>>,
    queue: Receiver<Job<O>>,
    pending: VecDeque<Pending<O>>,
    prefetch: usize,
    shared: Arc<Shared>,
    /// Batches of this epoch that are in flight: pending, or not given back by whoever took them.
    own: Arc<AtomicUsize>,
    cancelled: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl<O: Send + 'static> Workers<O> {
    pub(crate) fn start(
        plans: impl ExactSizeIterator<Item = BatchPlan> + Send + 'static,
        (workers, prefetch): (usize, usize),
        bytes: Bytes,
        make: Make<O>,
        sampler: Arc<Sampler>,
        shared: Arc<Shared>,
    ) -> Self {
        let (jobs, queue) = bounded::<Job<O>>(prefetch);
        let cancelled = Arc::new(AtomicBool::new(false));
        let thread = |_| {
            let (queue, make) = (queue.clone(), make.clone());
            let (shared, sampler, cancelled) = (shared.clone(), sampler.clone(), cancelled.clone());
            let worker = Worker { shared, sampler, cancelled, left_out: AtomicUsize::new(0) };
            std::thread::spawn(move || {
                for Job { plan, reply } in queue {
                    // Nobody listens when the iterator was dropped in the middle of an epoch.
                    let _ = reply.send((guarded(&make, &plan, &worker), worker.left_out.swap(0, Relaxed)));
                }
            })
        };
        let threads = (0..workers.min(plans.len())).map(thread).collect();
        let plans: Box<dyn Iterator<Item = BatchPlan> + Send> = Box::new(plans);
        let (plans, pending, own) = (plans.peekable(), VecDeque::new(), Arc::default());
        let mut this =
            Self { plans, bytes, jobs: Some(jobs), queue, pending, prefetch, shared, own, cancelled, threads };
        this.refill();
        this
    }

    /// Hands out jobs while there is room.
    fn refill(&mut self) {
        while self.pending.len() < self.prefetch
            && let Some(bytes) = self.next_bytes()
            && let Some(room) = self.shared.budget.try_queue(bytes, &self.own)
        {
            self.hand_out(room);
        }
    }

    /// Bytes of the next batch; 0 of one that will not be made.
    fn next_bytes(&mut self) -> Option<u64> {
        let bytes = (self.bytes)(self.plans.peek()?);
        Some(if bytes > self.shared.budget.batch_limit() { 0 } else { bytes })
    }

    fn hand_out(&mut self, room: Queued) {
        let (reply, receiver) = bounded(1);
        let (Some(plan), Some(jobs)) = (self.plans.next(), &self.jobs) else { return };
        let (bytes, samples, limit) = ((self.bytes)(&plan), plan.ids.len(), self.shared.budget.batch_limit());
        let handed = match bytes > limit {
            true => reply.send((Err(Error::NoRoom { bytes, limit }), 0)).is_ok(),
            // The queue holds `prefetch` jobs, so that this never blocks.
            false => jobs.send(Job { plan, reply }).is_ok(),
        };
        if handed {
            self.pending.push_back(Pending { reply: receiver, samples, bytes, room });
        }
    }

    /// The next batch. Whoever takes batches on the thread that uses them has given back the room of the one before; then this
    /// waits for nothing but the batch.
    pub(crate) fn take(&mut self) -> Option<Made<O>> {
        self.refill();
        if self.pending.is_empty() {
            let bytes = self.next_bytes()?;
            let room = self.shared.budget.queue(bytes, &self.own, &self.cancelled)?;
            self.hand_out(room);
        }
        let Pending { reply, samples, bytes, room } = self.pending.pop_front()?;
        // A worker answers every job it takes, and the queue lives as long as this.
        let (batch, left_out) = reply.recv().ok()?;
        self.refill();
        let samples = if batch.is_ok() { samples - left_out.min(samples) } else { 0 };
        Some(Made { batch, samples, bytes, room })
    }

    /// What ends the work when set, once the budget was [woken](Budget::wake).
    pub(crate) fn cancelled(&self) -> (Arc<AtomicBool>, Budget) {
        (self.cancelled.clone(), self.shared.budget.clone())
    }
}

fn guarded<O>(make: &Make<O>, plan: &BatchPlan, worker: &Worker) -> Result<O, Error> {
    catch_unwind(AssertUnwindSafe(|| make(plan, worker)))
        .unwrap_or_else(|panic| Err(Error::Panic { epoch: plan.epoch, batch: plan.index, message: message(panic) }))
}

impl<O> Drop for Workers<O> {
    fn drop(&mut self) {
        self.jobs = None; // ends the threads' loops once the queue is empty
        self.queue.try_iter().for_each(drop); // nobody takes what was not begun
        self.pending.clear();
        self.cancelled.store(true, SeqCst);
        self.shared.budget.wake();
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // panics were caught inside
        }
    }
}
