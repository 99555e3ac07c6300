//! The rounds in which the replicas of one process meet, as a state machine without threads and tensors.

use std::fmt;
use std::sync::Arc;

use crate::error::Error;

/// What a replica calls. All replicas of a round have to call the same.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Call {
    pub(super) operation: &'static str,
    /// The lengths of the tensors that are known to all replicas.
    pub(super) lengths: Vec<usize>,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.lengths.as_slice() {
            [] => f.write_str(self.operation),
            [only] => write!(f, "{} of {only} elements", self.operation),
            lengths => write!(f, "{} of {lengths:?} elements", self.operation),
        }
    }
}

/// The rounds of a group. In each round every replica brings a `T`, and when all have, every replica takes all of them.
///
/// The results of a round are kept until every replica has taken them. The next round may gather meanwhile: it cannot be complete before
/// that, because it needs those who have not taken yet.
pub(super) struct Meeting<T> {
    /// Rounds that are complete.
    round: u64,
    /// What the replicas brought to the round that gathers.
    brought: Vec<Option<T>>,
    /// What they call, and the first of them.
    call: Option<(usize, Call)>,
    /// The results of the last complete round, and how many replicas have yet to take them.
    results: Option<(Arc<[T]>, usize)>,
    /// The error that broke the group.
    end: Option<Error>,
}

impl<T> Meeting<T> {
    pub(super) fn new(replicas: usize) -> Self {
        let brought = (0..replicas).map(|_| None).collect();
        Self { round: 0, brought, call: None, results: None, end: None }
    }

    /// A replica joins the round that gathers. Returns the number of the round, with which the replica asks for the
    /// [`outcome`](Self::outcome).
    pub(super) fn join(&mut self, rank: usize, call: Call, value: T) -> Result<u64, Error> {
        if let Some(error) = self.ended() {
            return Err(error);
        }
        match &self.call {
            None => self.call = Some((rank, call)),
            Some((_, expected)) if *expected == call => {}
            Some((first, expected)) => {
                let (found, operation) = (call.to_string(), expected.operation);
                let error = Error::Lengths { rank, operation, found, first: *first, expected: expected.to_string() };
                self.end(error.clone());
                return Err(error);
            }
        }
        self.brought[rank] = Some(value);
        let round = self.round;
        if self.brought.iter().all(Option::is_some) {
            let results = self.brought.iter_mut().filter_map(Option::take).collect();
            self.results = Some((results, self.brought.len()));
            self.call = None;
            self.round += 1;
        }
        Ok(round)
    }

    /// What all replicas brought to `round`, which this replica has joined; none while the round gathers.
    pub(super) fn outcome(&mut self, rank: usize, round: u64) -> Option<Result<Arc<[T]>, Error>> {
        if self.round > round
            && let Some((results, left)) = &mut self.results
        {
            let taken = results.clone();
            *left -= 1;
            if *left == 0 {
                self.results = None;
            }
            return Some(Ok(taken));
        }
        self.end.as_ref().map(|end| {
            Err(match end.clone() {
                Error::Waited { operation, missing, seconds, .. } => {
                    Error::Waited { rank, operation, missing, seconds }
                }
                end => end,
            })
        })
    }

    /// A replica has waited for `seconds` in the round that gathers, which breaks the group.
    pub(super) fn expire(&mut self, rank: usize, seconds: u64) -> Error {
        let operation = self.call.as_ref().map_or("a round", |(_, call)| call.operation);
        let missing = (0..self.brought.len()).filter(|other| self.brought[*other].is_none()).collect();
        let error = Error::Waited { rank, operation, missing, seconds };
        self.end(error.clone());
        error
    }

    /// A replica leaves, which breaks the group. The results of the last round can still be taken.
    pub(super) fn leave(&mut self, rank: usize, reason: &str) {
        self.end(Error::Left { rank, reason: reason.to_owned() });
    }

    /// A replica made a mistake of its own, which breaks the group.
    pub(super) fn refuse(&mut self, rank: usize, error: &Error) {
        self.end(Error::Broken { reason: format!("replica {rank}: {error}") });
    }

    /// The error of operations that begin after the group was broken.
    pub(super) fn ended(&self) -> Option<Error> {
        self.end.as_ref().map(Error::afterwards)
    }

    /// Breaks the group, unless it is broken.
    fn end(&mut self, error: Error) {
        self.brought.iter_mut().for_each(|brought| *brought = None);
        self.end.get_or_insert(error);
    }
}
