//! Threads that wait for the next job instead of ending.
//!
//! Backends on CubeCL give each thread a stream with memory pools of its own, on the device and of pinned host memory, and keep
//! both when the thread ends. A thread that copies an epoch's batches therefore serves the next epoch too.

use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

use crossbeam::channel::{Receiver, Sender, bounded};

use crate::error::Error;

type Job = Box<dyn FnOnce() + Send>;

/// Where a thread that waits takes its next job from.
static IDLE: Mutex<Vec<Sender<Job>>> = Mutex::new(vec![]);

/// A new thread that does `work`. The system may have none left, which `std::thread::spawn` answers with a panic.
pub(super) fn start_thread(work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    std::thread::Builder::new().spawn(work).map_err(|reason| Error::Thread { reason })
}

/// A job on its thread. It must not panic.
pub(super) struct Running(Receiver<()>);

impl Running {
    /// Starts `job` on a thread that waits, or on a new one.
    ///
    /// # Errors
    /// [`Error::Thread`] when the system has no thread for it.
    pub(super) fn start(job: impl FnOnce() + Send + 'static) -> Result<Self, Error> {
        let (ended, ends) = bounded(1);
        let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let thread = match idle {
            Some(thread) => thread,
            None => {
                let (sender, jobs) = bounded::<Job>(1);
                // It waits as long as the process runs.
                start_thread(move || jobs.into_iter().for_each(|job| job()))?;
                sender
            }
        };
        let again = thread.clone();
        let job = move || {
            job();
            IDLE.lock().unwrap_or_else(PoisonError::into_inner).push(again);
            let _ = ended.send(()); // nobody may wait
        };
        // The channel has room: its thread has no other job.
        let _ = thread.send(Box::new(job));
        Ok(Self(ends))
    }

    /// Waits until the job has ended.
    pub(super) fn wait(&self) {
        let _ = self.0.recv(); // an error: it ended without a word
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_serves_one_job_after_the_other() {
        let id = || {
            let (sender, id) = bounded(1);
            let running = Running::start(move || sender.send(std::thread::current().id()).unwrap()).unwrap();
            running.wait();
            id.recv().unwrap()
        };
        let ids: std::collections::BTreeSet<_> = (0..50).map(|_| format!("{:?}", id())).collect();
        // Other tests of this process have jobs too.
        assert!(ids.len() < 50, "{ids:?}");
    }

    #[test]
    fn jobs_that_wait_for_each_other_have_threads_of_their_own() {
        let (first, second) = (bounded(0), bounded(0));
        let one = Running::start(move || {
            first.0.send(()).unwrap();
            second.1.recv().unwrap();
        })
        .unwrap();
        let other = Running::start(move || {
            first.1.recv().unwrap();
            second.0.send(()).unwrap();
        })
        .unwrap();
        one.wait();
        other.wait();
    }
}
