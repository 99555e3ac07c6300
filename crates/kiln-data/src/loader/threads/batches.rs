//! The batches of one epoch, as an iterator.

use std::sync::Arc;
use std::time::Instant;

use crate::error::Error;
use crate::loader::budget::Queued;

use super::device_prefetch::DevicePrefetch;
use super::worker::Shared;
use super::workers::{Made, Workers};

/// The source of batches.
pub(crate) enum Source<O> {
    Workers(Workers<O>),
    DevicePrefetch(DevicePrefetch<O>),
    /// The threads could not be started: the error comes in place of the first batch.
    Failed(Option<Error>),
}

/// The batches of one epoch, in order; made by [`Loader::epoch`](crate::Loader::epoch). Dropping it ends its threads.
pub struct Batches<O> {
    source: Source<O>,
    shared: Arc<Shared>,
    /// The batch in use counts as in flight until the consumer asks for the next.
    delivered: Option<Queued>,
    since: Option<Instant>,
}

impl<O: Send + 'static> Batches<O> {
    pub(crate) fn new(source: Source<O>, shared: Arc<Shared>) -> Self {
        Self { source, shared, delivered: None, since: None }
    }
}

impl<O: Send + 'static> Iterator for Batches<O> {
    type Item = Result<O, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let asked = Instant::now();
        if let Some(since) = self.since.take() {
            self.shared.counters.used(asked - since);
        }
        self.delivered = None;
        let made = match &mut self.source {
            Source::Failed(error) => return error.take().map(Err),
            Source::Workers(workers) => workers.take(),
            Source::DevicePrefetch(prefetch) => prefetch.take(),
        };
        let now = Instant::now();
        self.shared.counters.waited(now - asked);
        let Made { batch, samples, room, .. } = made?;
        self.since = Some(now);
        self.delivered = Some(room);
        self.shared.counters.delivered(samples);
        Some(batch)
    }
}
