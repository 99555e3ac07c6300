use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;

use crossbeam::channel::{Receiver, Sender, bounded};

use crate::budget::Queued;
use crate::loader::{Bytes, Make};
use crate::worker::{Shared, Worker, message};
use crate::{BatchPlan, Error};

/// A batch that was made, the samples and bytes it was planned to have, and the room it takes in the budget.
pub(crate) struct Made<O> {
    pub(crate) batch: Result<O, Error>,
    pub(crate) samples: usize,
    pub(crate) bytes: u64,
    pub(crate) room: Queued,
}

struct Pending<O> {
    reply: Receiver<Result<O, Error>>,
    samples: usize,
    bytes: u64,
    room: Queued,
}

struct Job<O> {
    plan: BatchPlan,
    reply: Sender<Result<O, Error>>,
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
    cancelled: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl<O: Send + 'static> Workers<O> {
    pub(crate) fn start(
        plans: impl ExactSizeIterator<Item = BatchPlan> + Send + 'static,
        (workers, prefetch): (usize, usize),
        bytes: Bytes,
        make: Make<O>,
        shared: Arc<Shared>,
    ) -> Self {
        let (jobs, queue) = bounded::<Job<O>>(prefetch);
        let cancelled = Arc::new(AtomicBool::new(false));
        let thread = |_| {
            let (queue, make) = (queue.clone(), make.clone());
            let worker = Worker { shared: shared.clone(), cancelled: cancelled.clone() };
            std::thread::spawn(move || {
                for Job { plan, reply } in queue {
                    // Nobody listens when the iterator was dropped in the middle of an epoch.
                    let _ = reply.send(guarded(&make, &plan, &worker));
                }
            })
        };
        let threads = (0..workers.min(plans.len())).map(thread).collect();
        let plans: Box<dyn Iterator<Item = BatchPlan> + Send> = Box::new(plans);
        let plans = plans.peekable();
        let pending = VecDeque::new();
        let mut this = Self { plans, bytes, jobs: Some(jobs), queue, pending, prefetch, shared, cancelled, threads };
        this.refill(true);
        this
    }

    /// Hands out jobs; one in any case if the batch that is to be taken `must` come.
    fn refill(&mut self, must: bool) {
        while self.pending.len() < self.prefetch
            && let Some(jobs) = &self.jobs
            && let Some(plan) = self.plans.peek()
        {
            let (bytes, samples) = ((self.bytes)(plan), plan.ids.len());
            let Some(room) = self.shared.budget.try_queue(bytes, must && self.pending.is_empty()) else { break };
            let (reply, receiver) = bounded(1);
            // The queue holds `prefetch` jobs, so that this never blocks.
            if let Some(plan) = self.plans.next()
                && jobs.send(Job { plan, reply }).is_ok()
            {
                self.pending.push_back(Pending { reply: receiver, samples, bytes, room });
            }
        }
    }

    /// The next batch; the caller has given back the room of the one before.
    pub(crate) fn take(&mut self) -> Option<Made<O>> {
        self.refill(true);
        let Pending { reply, samples, bytes, room } = self.pending.pop_front()?;
        // A worker answers every job it takes, and the queue lives as long as this.
        let batch = reply.recv().ok()?;
        self.refill(false);
        Some(Made { batch, samples, bytes, room })
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
