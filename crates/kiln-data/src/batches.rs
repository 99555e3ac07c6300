use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::JoinHandle;

use crossbeam::channel::{Receiver, Sender, bounded};

use crate::loader::Make;
use crate::{BatchPlan, Error};

type Reply<O> = Result<O, Error>;
type Job<O> = (BatchPlan, Sender<Reply<O>>);

/// The batches of one epoch, in order; made by [`Loader::epoch`](crate::Loader::epoch).
///
/// Each batch is a job with a reply channel of its own. Waiting for the replies in the order of the
/// jobs keeps the order whatever the workers do, and a job is only handed out when a batch was taken, so
/// that at most `prefetch` batches exist at once.
pub struct Batches<O> {
    plans: Box<dyn Iterator<Item = BatchPlan> + Send>,
    jobs: Option<Sender<Job<O>>>,
    queue: Receiver<Job<O>>,
    replies: VecDeque<Receiver<Reply<O>>>,
    prefetch: usize,
    workers: Vec<JoinHandle<()>>,
}

impl<O: Send + 'static> Batches<O> {
    pub(crate) fn start(
        plans: impl ExactSizeIterator<Item = BatchPlan> + Send + 'static,
        workers: usize,
        prefetch: usize,
        make: Make<O>,
    ) -> Self {
        let (jobs, queue) = bounded::<Job<O>>(prefetch);
        let worker = |_| {
            let (queue, make) = (queue.clone(), make.clone());
            std::thread::spawn(move || {
                for (plan, reply) in queue {
                    // Nobody listens when the iterator was dropped in the middle of an epoch.
                    let _ = reply.send(guarded(&make, &plan));
                }
            })
        };
        let workers = (0..workers.min(plans.len())).map(worker).collect();
        let mut batches =
            Self { plans: Box::new(plans), jobs: Some(jobs), queue, replies: VecDeque::new(), prefetch, workers };
        batches.refill();
        batches
    }

    fn refill(&mut self) {
        while self.replies.len() < self.prefetch
            && let Some(jobs) = &self.jobs
            && let Some(plan) = self.plans.next()
        {
            let (reply, receiver) = bounded(1);
            // The queue holds `prefetch` jobs, so that this never blocks.
            if jobs.send((plan, reply)).is_ok() {
                self.replies.push_back(receiver);
            }
        }
    }
}

fn guarded<O>(make: &Make<O>, plan: &BatchPlan) -> Reply<O> {
    catch_unwind(AssertUnwindSafe(|| make(plan))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        Err(Error::Panic { epoch: plan.epoch, batch: plan.index, message: text.replace('\n', " ") })
    })
}

impl<O: Send + 'static> Iterator for Batches<O> {
    type Item = Reply<O>;

    fn next(&mut self) -> Option<Self::Item> {
        // A worker answers every job it takes, and the queue lives as long as this iterator.
        let reply = self.replies.pop_front()?.recv().ok()?;
        self.refill();
        Some(reply)
    }
}

impl<O> Drop for Batches<O> {
    fn drop(&mut self) {
        self.jobs = None; // ends the workers' loops once the queue is empty
        self.queue.try_iter().for_each(drop); // nobody takes what was not begun
        self.replies.clear();
        for worker in self.workers.drain(..) {
            let _ = worker.join(); // panics were caught inside
        }
    }
}
