//! Requests that MPI has not completed yet.

use std::thread::{sleep, yield_now};
use std::time::Duration;

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

/// Waits between questions to MPI: not at all at first, then at most half a millisecond.
#[derive(Default)]
pub(super) struct Backoff(u32);

impl Backoff {
    const TURNS: u32 = 2000;

    pub(super) fn pause(&mut self) {
        match self.0.checked_sub(Self::TURNS) {
            None => yield_now(),
            Some(over) => sleep(Duration::from_micros(u64::from(over + 1).min(25) * 20)),
        }
        self.0 = self.0.saturating_add(1);
    }

    pub(super) fn reset(&mut self) {
        self.0 = 0;
    }
}
