//! Requests that MPI has not completed yet.

use std::thread::{sleep, yield_now};
use std::time::{Duration, Instant};

use mpi::request::{LocalScope, Request};

/// Requests to and from other processes, with the processes.
pub(super) struct Pending<'a, 's, T>(Vec<(usize, Request<'a, [T], &'s LocalScope<'a>>)>);

impl<'a, 's, T> Pending<'a, 's, T> {
    pub(super) fn new() -> Self {
        Self(vec![])
    }

    pub(super) fn add(&mut self, rank: usize, request: Request<'a, [T], &'s LocalScope<'a>>) {
        self.0.push((rank, request));
    }

    /// Asks MPI for each request whether it is complete. Returns whether one was.
    pub(super) fn test(&mut self) -> bool {
        let before = self.0.len();
        let left = |(rank, request): (usize, Request<'a, [T], &'s LocalScope<'a>>)| match request.test() {
            Ok(_) => None,
            Err(request) => Some((rank, request)),
        };
        self.0 = std::mem::take(&mut self.0).into_iter().filter_map(left).collect();
        self.0.len() < before
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The processes that requests wait for.
    pub(super) fn ranks(&self) -> impl Iterator<Item = usize> {
        self.0.iter().map(|(rank, _)| *rank)
    }
}

/// Waits between tests of requests: hardly at first, later half a millisecond. MPI moves values only while it is called, so that a sleep
/// slows down a transfer that is under way.
pub(super) struct Backoff {
    moved: Instant,
    /// How long nothing may move before this sleeps.
    patience: Duration,
}

impl Backoff {
    const SLEEP: Duration = Duration::from_micros(500);

    pub(super) fn new(patience: Duration) -> Self {
        Self { moved: Instant::now(), patience }
    }

    /// Gives the processor to others for a moment. `moved` says whether a request was completed or a message came.
    pub(super) fn pause(&mut self, moved: bool) {
        if moved {
            self.moved = Instant::now();
        } else if self.moved.elapsed() < self.patience {
            yield_now();
        } else {
            sleep(Self::SLEEP);
        }
    }
}
