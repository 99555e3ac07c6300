//! The thread that owns MPI, and the rounds in which it meets those of the other processes.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mpi::environment::Universe;
use mpi::point_to_point::{Destination, MatchedReceiveVec, Source};
use mpi::request::scope;
use mpi::topology::{Communicator, SimpleCommunicator};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::message::{End, Header, Reason};
use super::transfer::{Backoff, Pending};
use crate::error::Error;
use crate::reduce::rendezvous::Call;

/// The operation and the values of a replica for a round.
pub(super) struct Round {
    pub(super) call: Call,
    pub(super) message: Vec<u8>,
    pub(super) values: Vec<f32>,
    /// The part of `values` for each replica.
    pub(super) parts: Vec<Range<usize>>,
    /// The number of values that come from each replica.
    pub(super) incoming: Vec<usize>,
}

/// The messages and values of all replicas for this one, in the order of the ranks.
pub(super) struct Contributions {
    pub(super) messages: Vec<Vec<u8>>,
    /// The values of all, one after the other.
    pub(super) values: Vec<f32>,
}

/// A request to the thread.
pub(super) enum Job {
    Round(Round, Sender<Result<Contributions, Error>>),
    /// Look at the [`EndRequest`].
    Look,
}

/// The error with which this replica asks to end the group. The thread notices it in the middle of a round too.
#[derive(Clone, Default)]
pub(super) struct EndRequest(Arc<Mutex<Option<Error>>>);

impl EndRequest {
    /// Keeps the first error.
    pub(super) fn set(&self, error: Error) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }

    pub(super) fn get(&self) -> Option<Error> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

const HEADER: i32 = 1;
const END: i32 = 2;
const MESSAGE: i32 = 3;
const VALUES: i32 = 4;

/// Others may compute for long before they come to a round.
const COMPUTING: Duration = Duration::from_millis(1);
/// When all are there, values move.
const MOVING: Duration = Duration::from_secs(1);

/// How long messages that say goodbye may be on their way.
const GOODBYE: Duration = Duration::from_secs(2);

/// The state of the thread.
pub(super) struct Rounds {
    pub(super) universe: Universe,
    pub(super) world: SimpleCommunicator,
    pub(super) rank: usize,
    pub(super) replicas: usize,
    pub(super) time_limit: Duration,
    /// The most elements that are sent at once.
    pub(super) piece: NonZeroUsize,
    pub(super) end_request: EndRequest,
    /// Dropped when the thread has finalised MPI, or when it never will.
    pub(super) running: Option<Sender<()>>,
    pub(super) jobs: Receiver<Job>,
    /// Rounds that are complete.
    pub(super) round: u64,
    /// The ends of other replicas.
    pub(super) ends: Vec<(usize, End)>,
    /// The error that ended the group for this replica.
    pub(super) over: Option<Error>,
    /// Whether a replica has waited for another in vain, which would not finalise MPI either.
    pub(super) waited: bool,
}

impl Rounds {
    /// Works on jobs until the replica is dropped, then finalises MPI, which waits for the other processes to do the same.
    pub(super) fn serve(mut self) {
        while let Ok(job) = self.jobs.recv() {
            self.look();
            if let Job::Round(round, reply) = job {
                let outcome = match &self.over {
                    Some(over) => Err(over.afterwards()),
                    None => self.meet(&round, &reply),
                };
                if let Err(error) = &outcome {
                    self.end(error);
                }
                // The caller may be gone.
                let _ = reply.send(outcome);
            }
        }
        self.end(&Error::Left { rank: self.rank, reason: "its communicator was dropped".into() });
        match self.waited {
            true => std::mem::forget(self.universe),
            false => drop(self.universe),
        }
        drop(self.running);
    }

    /// Ends the group if this replica asks for it.
    fn look(&mut self) {
        if let Some(error) = self.end_request.get() {
            self.end(&error);
        }
    }

    /// Ends the group for this replica, and tells the others.
    fn end(&mut self, error: &Error) {
        if self.over.is_none() {
            self.over = Some(error.clone());
            let end = encoded(&End { round: self.round, reason: Reason::of(error, self.rank) });
            scope(|scope| {
                let mut pending = Pending::new();
                for rank in self.others() {
                    let request = self.world.process_at_rank(rank as i32).immediate_send_with_tag(scope, &end[..], END);
                    pending.add(rank, request);
                }
                let (deadline, mut backoff) = (Instant::now() + GOODBYE, Backoff::new(COMPUTING));
                while !pending.is_empty() {
                    if Instant::now() > deadline {
                        self.strand(error, None);
                    }
                    backoff.pause(pending.test());
                }
            });
        }
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.rank;
        (0..self.replicas).filter(move |rank| *rank != own)
    }

    /// One round: all replicas learn which operation each of them calls, then messages and values go to their receivers.
    fn meet(&mut self, round: &Round, reply: &Sender<Result<Contributions, Error>>) -> Result<Contributions, Error> {
        let deadline = Instant::now().checked_add(self.time_limit);
        let own = Header::new(&round.call.to_string(), round.message.len(), self.piece);
        let headers = self.headers(round, &own, deadline, reply)?;
        if let Some(other) = headers.iter().position(|header| header.call != own.call) {
            let (first, rank) = (self.rank.min(other), self.rank.max(other));
            let (expected, found) = (headers[first].call.clone(), headers[rank].call.clone());
            return Err(Error::Lengths { rank, operation: round.call.operation, found, first, expected });
        }
        let contributions = self.transfer(round, &headers, deadline, reply)?;
        self.round += 1;
        Ok(contributions)
    }

    /// Sends the header to all and waits for those of all. This depends on the network alone, so that it can end at any time.
    fn headers(
        &mut self,
        round: &Round,
        own: &Header,
        deadline: Option<Instant>,
        reply: &Sender<Result<Contributions, Error>>,
    ) -> Result<Vec<Header>, Error> {
        let bytes = encoded(own);
        let mut headers: Vec<Option<Header>> = vec![None; self.replicas];
        headers[self.rank] = Some(own.clone());
        scope(|scope| {
            let mut pending = Pending::new();
            for rank in self.others() {
                let request =
                    self.world.process_at_rank(rank as i32).immediate_send_with_tag(scope, &bytes[..], HEADER);
                pending.add(rank, request);
            }
            let mut backoff = Backoff::new(COMPUTING);
            let mut unreadable = None;
            loop {
                let mut moved = pending.test();
                for rank in self.others().filter(|rank| headers[*rank].is_none()).collect::<Vec<_>>() {
                    match self.receive(rank, HEADER) {
                        Some(Ok(header)) => (headers[rank], moved) = (Some(header), true),
                        Some(Err(reason)) => {
                            unreadable = Some(Error::Transfer { operation: round.call.operation, reason });
                        }
                        None => {}
                    }
                }
                if let Some(headers) = headers.iter().cloned().collect::<Option<Vec<_>>>()
                    && pending.is_empty()
                {
                    // A replica that has waited in vain for this one does not go on, although its header is here.
                    return self.others_end(round).map_or(Ok(headers), Err);
                }
                let missing = (0..self.replicas).filter(|rank| headers[*rank].is_none()).chain(pending.ranks());
                if let Some(error) = unreadable.take().or_else(|| self.interrupted(round, deadline, missing)) {
                    if pending.is_empty() {
                        return Err(error);
                    }
                    self.strand(&error, Some(reply));
                }
                backoff.pause(moved);
            }
        })
    }

    /// Sends and receives the messages and values that follow the headers.
    fn transfer(
        &mut self,
        round: &Round,
        headers: &[Header],
        deadline: Option<Instant>,
        reply: &Sender<Result<Contributions, Error>>,
    ) -> Result<Contributions, Error> {
        let mut messages: Vec<Vec<u8>> = headers.iter().map(|header| vec![0; header.bytes]).collect();
        let mut values = vec![0.0; round.incoming.iter().sum()];
        let own = self.rank;
        scope(|scope| {
            let (mut bytes, mut floats) = (Pending::new(), Pending::new());
            let mut rest = &mut values[..];
            for (rank, (message, length)) in messages.iter_mut().zip(&round.incoming).enumerate() {
                let piece = headers[rank].piece.get();
                let from;
                (from, rest) = std::mem::take(&mut rest).split_at_mut(*length);
                let process = self.world.process_at_rank(rank as i32);
                if rank == own {
                    message.copy_from_slice(&round.message);
                    from.copy_from_slice(&round.values[round.parts[rank].clone()]);
                    continue;
                }
                // Pieces of one tag arrive in the order in which they were sent.
                for piece in message.chunks_mut(piece) {
                    bytes.add(rank, process.immediate_receive_into_with_tag(scope, piece, MESSAGE));
                }
                for piece in from.chunks_mut(piece) {
                    floats.add(rank, process.immediate_receive_into_with_tag(scope, piece, VALUES));
                }
            }
            for rank in self.others() {
                let (process, part) =
                    (self.world.process_at_rank(rank as i32), &round.values[round.parts[rank].clone()]);
                for piece in round.message.chunks(self.piece.get()) {
                    bytes.add(rank, process.immediate_send_with_tag(scope, piece, MESSAGE));
                }
                for piece in part.chunks(self.piece.get()) {
                    floats.add(rank, process.immediate_send_with_tag(scope, piece, VALUES));
                }
            }
            let mut backoff = Backoff::new(MOVING);
            loop {
                let moved = bytes.test() | floats.test();
                if bytes.is_empty() && floats.is_empty() {
                    return;
                }
                if let Some(error) = self.interrupted(round, deadline, bytes.ranks().chain(floats.ranks())) {
                    self.strand(&error, Some(reply));
                }
                backoff.pause(moved);
            }
        });
        Ok(Contributions { messages, values })
    }

    /// The error of a round that cannot go on: a replica has ended, or the time is over.
    fn interrupted(
        &mut self,
        round: &Round,
        deadline: Option<Instant>,
        missing: impl Iterator<Item = usize>,
    ) -> Option<Error> {
        if let Some(error) = self.end_request.get().or_else(|| self.others_end(round)) {
            return Some(error);
        }
        deadline.filter(|deadline| Instant::now() >= *deadline).map(|_| {
            self.waited = true;
            let mut missing: Vec<usize> = missing.collect();
            missing.sort_unstable();
            missing.dedup();
            let (operation, seconds) = (round.call.operation, self.time_limit.as_secs());
            Error::Waited { rank: self.rank, operation, missing, seconds }
        })
    }

    /// The end of a replica that will not complete this round.
    fn others_end(&mut self, round: &Round) -> Option<Error> {
        // A message that cannot be read counts as an end too.
        let current = self.round;
        let unreadable = |reason| End { round: current, reason: Reason::Broken(reason) };
        for rank in self.others() {
            if let Some(end) = self.receive::<End>(rank, END).map(|end| end.unwrap_or_else(unreadable)) {
                self.waited |= matches!(end.reason, Reason::Waited { .. });
                self.ends.push((rank, end));
            }
        }
        let ended = self.ends.iter().find(|(_, end)| end.round <= self.round);
        ended.map(|(rank, end)| end.reason.error(*rank, self.rank, round.call.operation))
    }

    /// A small message of another process, if one is here, or why it cannot be read.
    fn receive<T: DeserializeOwned>(&self, rank: usize, tag: i32) -> Option<Result<T, String>> {
        let message = self.world.process_at_rank(rank as i32).immediate_matched_probe_with_tag(tag)?;
        let (bytes, _) = message.matched_receive_vec::<u8>();
        let refused = |e| {
            format!(
                "a message of replica {rank} cannot be read ({e}), expected the same version of kiln in each process"
            )
        };
        Some(serde_json::from_slice(&bytes).map_err(refused))
    }

    /// Ends the group while MPI still holds buffers, which must live as long as MPI may write to them: this thread keeps them for the
    /// rest of the process. MPI is not finalised, so that `mpirun` ends the other processes when this one ends.
    fn strand(&mut self, error: &Error, reply: Option<&Sender<Result<Contributions, Error>>>) -> ! {
        if let Some(reply) = reply {
            let _ = reply.send(Err(error.clone()));
        }
        drop(self.running.take());
        self.end(error);
        let after = error.afterwards();
        while let Ok(job) = self.jobs.recv() {
            if let Job::Round(_, reply) = job {
                let _ = reply.send(Err(after.clone()));
            }
        }
        loop {
            std::thread::park();
        }
    }
}

fn encoded(message: &impl Serialize) -> Vec<u8> {
    // Strings and numbers can be written.
    serde_json::to_vec(message).unwrap_or_default()
}
