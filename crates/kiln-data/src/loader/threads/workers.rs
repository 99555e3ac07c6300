//! The threads that make the batches of one epoch.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::thread::JoinHandle;

use crossbeam::channel::{Receiver, Sender, bounded};

use crate::caught::caught;
use crate::error::Error;
use crate::loader::budget::{Budget, Queued};
use crate::loader::config::BatchPlan;
use crate::order::Sampler;

use super::idle_threads::start_thread;
use super::worker::{Shared, Worker};

/// Makes the batch of a plan.
pub(crate) type Make<O> = Arc<dyn Fn(&BatchPlan, &Worker) -> Result<O, Error> + Send + Sync>;

/// The bytes of the batch of a plan.
pub(crate) type Bytes = Arc<dyn Fn(&BatchPlan) -> u64 + Send + Sync>;

/// A batch that was made, its number of samples, its planned bytes, and its share of the budget.
pub(crate) struct Made<O> {
    pub(crate) batch: Result<O, Error>,
    pub(crate) samples: usize,
    pub(crate) bytes: u64,
    pub(crate) room: Queued,
}

/// The result of a job, and the number of its samples that were left out.
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
/// Each batch is a job with its own reply channel. The replies are awaited in the order of the jobs, so that the order does
/// not depend on the workers. A job starts only when the budget has room for its batch, and at most `prefetch` batches are
/// pending.
pub(crate) struct Workers<O> {
    plans: std::iter::Peekable<Box<dyn Iterator<Item = BatchPlan> + Send>>,
    bytes: Bytes,
    jobs: Option<Sender<Job<O>>>,
    queue: Receiver<Job<O>>,
    pending: VecDeque<Pending<O>>,
    prefetch: usize,
    shared: Arc<Shared>,
    /// Batches of this epoch in flight: pending, or still in use.
    own: Arc<AtomicUsize>,
    cancelled: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl<O: Send + 'static> Workers<O> {
    /// Starts the threads and their first jobs.
    ///
    /// # Errors
    /// [`Error::Thread`] when the system has no thread for one of them.
    pub(crate) fn start(
        plans: impl ExactSizeIterator<Item = BatchPlan> + Send + 'static,
        (workers, prefetch): (usize, usize),
        bytes: Bytes,
        make: Make<O>,
        sampler: Arc<Sampler>,
        shared: Arc<Shared>,
    ) -> Result<Self, Error> {
        let (jobs, queue) = bounded::<Job<O>>(prefetch);
        let cancelled = Arc::new(AtomicBool::new(false));
        let thread = |_| {
            let (queue, make) = (queue.clone(), make.clone());
            let (shared, sampler, cancelled) = (shared.clone(), sampler.clone(), cancelled.clone());
            let worker = Worker { shared, sampler, cancelled, left_out: AtomicUsize::new(0) };
            let work = move || {
                for Job { plan, reply } in queue {
                    // The receiver is gone when the iterator was dropped in the middle of an epoch.
                    let _ = reply.send((guarded(&make, &plan, &worker), worker.left_out.swap(0, Relaxed)));
                }
            };
            start_thread(work)
        };
        // When one cannot be started, `jobs` is dropped, which ends those that were.
        let threads = (0..workers.min(plans.len())).map(thread).collect::<Result<_, _>>()?;
        let plans: Box<dyn Iterator<Item = BatchPlan> + Send> = Box::new(plans);
        let (plans, pending, own) = (plans.peekable(), VecDeque::new(), Arc::default());
        let mut this =
            Self { plans, bytes, jobs: Some(jobs), queue, pending, prefetch, shared, own, cancelled, threads };
        this.refill();
        Ok(this)
    }

    /// Starts jobs while the budget has room.
    fn refill(&mut self) {
        while self.pending.len() < self.prefetch
            && let Some(bytes) = self.next_bytes()
            && let Some(room) = self.shared.budget.try_queue(bytes, &self.own)
        {
            self.hand_out(room);
        }
    }

    /// Bytes of the next batch; 0 for a batch above the limit, which is not made.
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
            // The queue holds `prefetch` jobs: this never blocks.
            false => jobs.send(Job { plan, reply }).is_ok(),
        };
        if handed {
            self.pending.push_back(Pending { reply: receiver, samples, bytes, room });
        }
    }

    /// The next batch. The consumer has freed the batch before it, so this waits for a worker and never for the byte budget.
    pub(crate) fn take(&mut self) -> Option<Made<O>> {
        self.refill();
        if self.pending.is_empty() {
            let bytes = self.next_bytes()?;
            let room = self.shared.budget.queue(bytes, &self.own, &self.cancelled)?;
            self.hand_out(room);
        }
        let Pending { reply, samples, bytes, room } = self.pending.pop_front()?;
        // A worker replies to every job that it takes, and the queue lives as long as `self`.
        let (batch, left_out) = reply.recv().ok()?;
        self.refill();
        let samples = if batch.is_ok() { samples - left_out.min(samples) } else { 0 };
        Some(Made { batch, samples, bytes, room })
    }

    /// The flag that ends the work, and the budget to [wake](Budget::wake) after it is set.
    pub(crate) fn cancelled(&self) -> (Arc<AtomicBool>, Budget) {
        (self.cancelled.clone(), self.shared.budget.clone())
    }
}

fn guarded<O>(make: &Make<O>, plan: &BatchPlan, worker: &Worker) -> Result<O, Error> {
    caught(|| make(plan, worker), |message| Error::Panic { epoch: plan.epoch, batch: plan.index, message })
}

impl<O> Drop for Workers<O> {
    fn drop(&mut self) {
        self.jobs = None; // ends the threads' loops once the queue is empty
        self.queue.try_iter().for_each(drop); // jobs that were not begun
        self.pending.clear();
        self.cancelled.store(true, SeqCst);
        self.shared.budget.wake();
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // panics were caught inside
        }
    }
}
