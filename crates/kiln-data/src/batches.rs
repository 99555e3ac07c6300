use std::sync::Arc;
use std::time::Instant;

use crate::Error;
use crate::ahead::Ahead;
use crate::budget::Queued;
use crate::worker::Shared;
use crate::workers::{Made, Workers};

/// Where batches come from.
pub(crate) enum Source<O> {
    Workers(Workers<O>),
    Ahead(Ahead<O>),
}

/// The batches of one epoch, in order; made by [`Loader::epoch`](crate::Loader::epoch). Dropping it ends its threads.
pub struct Batches<O> {
    source: Source<O>,
    shared: Arc<Shared>,
    /// The batch that the consumer has counts as in flight until it asks for the next.
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
            Source::Workers(workers) => workers.take(),
            Source::Ahead(ahead) => ahead.take(),
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
