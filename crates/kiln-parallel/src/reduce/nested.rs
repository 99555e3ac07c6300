//! Groups of groups: processes with several devices each.

use burn::tensor::Tensor;

use super::communicator::{Communicator, check_gather, check_parts, check_values};
use super::pieces::{cut, joined, length, lengths, nothing};
use crate::error::Error;

/// A replica of a group of groups: `inside` connects the replicas of one process, `between` connects the processes. All processes have the
/// same number of replicas. Ranks count process by process: `rank = between.rank() * inside.replicas() + inside.rank()`.
///
/// The first replica of each process is its leader. An operation runs inside, then between the leaders, then the leaders hand the result
/// out inside. So a sum adds the replicas of each process first: `(v0 + v1) + (v2 + v3)` for two processes with two replicas each. All
/// replicas get the same bits, but not those of the sum in the order of the ranks.
///
/// All replicas of a process share one `between`, as an [`Arc`](std::sync::Arc), and only the leader operates it. A replica that leaves, or
/// is dropped, leaves both groups, so that all processes learn of it. Replicas of other processes may get [`Error::Left`] with the rank of
/// a leader; the reason then names the replica that left.
///
/// `inside` needs a longer time limit than `between`: while its leader waits for another process, the others of a process wait for their
/// leader.
#[derive(Debug)]
pub struct Nested<I: Communicator, B: Communicator> {
    inside: I,
    between: B,
}

impl<I: Communicator, B: Communicator> Nested<I, B> {
    /// Joins the group of groups as one replica. All replicas of all processes have to call it, and wait for each other.
    ///
    /// # Errors
    /// Those of [`exchange`](Communicator::exchange). [`Error::Differs`] on every replica when processes have different numbers of
    /// replicas.
    pub fn new(inside: I, between: B) -> Result<Self, Error> {
        let nested = Self { inside, between };
        let own = (nested.inside.replicas() as u64).to_le_bytes();
        // Processes without replicas do not exist, so that each sends eight bytes.
        let numbers = nested.run(|nested| {
            let numbers = nested.led(|between| between.exchange(&own))?.unwrap_or_default();
            nested.broadcast(&numbers.concat())
        })?;
        let numbers: Vec<u64> = numbers.as_chunks().0.iter().map(|number| u64::from_le_bytes(*number)).collect();
        match numbers.iter().all(|number| *number == numbers[0]) {
            true => Ok(nested),
            false => Err(Error::Differs { what: "the number of replicas in a process".into(), values: numbers }),
        }
    }

    fn is_leader(&self) -> bool {
        self.inside.rank() == 0
    }

    /// Runs an operation. If it fails, this replica leaves both groups, because others wait in a part of the operation that will not come.
    fn run<T>(&self, operation: impl FnOnce(&Self) -> Result<T, Error>) -> Result<T, Error> {
        operation(self).inspect_err(|error| {
            let reason = match error {
                Error::Broken { reason } => reason.clone(),
                error => error.to_string(),
            };
            self.inside.leave(&reason);
            self.between.leave(&reason);
        })
    }

    /// An operation inside, whose errors name ranks of the whole group.
    fn inside<T>(&self, operation: impl FnOnce(&I) -> Result<T, Error>) -> Result<T, Error> {
        let first = self.between.rank() * self.inside.replicas();
        operation(&self.inside).map_err(|error| with_ranks(error, |rank| first + rank))
    }

    /// An operation of the leaders, whose errors name the ranks of leaders; nothing on other replicas.
    fn led<T>(&self, operation: impl FnOnce(&B) -> Result<T, Error>) -> Result<Option<T>, Error> {
        if !self.is_leader() {
            return Ok(None);
        }
        let replicas = self.inside.replicas();
        operation(&self.between).map(Some).map_err(|error| with_ranks(error, |rank| rank * replicas))
    }

    /// The leader's message.
    fn broadcast(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let own: &[u8] = if self.is_leader() { message } else { &[] };
        Ok(self.inside(|inside| inside.exchange(own))?.swap_remove(0))
    }

    /// The leader's values, whose number all replicas know, on the device of `like`.
    fn hand_out(&self, values: Option<Tensor<1>>, elements: usize, like: &Tensor<1>) -> Result<Tensor<1>, Error> {
        let mut lengths = vec![0; self.inside.replicas()];
        lengths[0] = elements;
        let own = values.unwrap_or_else(|| nothing(&like.device()));
        Ok(self.inside(|inside| inside.all_gather(own, &lengths))?.swap_remove(0))
    }

    /// The sum over the replicas of this process, on its leader.
    fn sum_inside(&self, values: Tensor<1>) -> Result<Tensor<1>, Error> {
        let others = (1..self.inside.replicas()).map(|_| nothing(&values.device()));
        let parts = std::iter::once(values.clone()).chain(others).collect();
        self.inside(|inside| inside.reduce_scatter(parts))
    }
}

impl<I: Communicator, B: Communicator> Communicator for Nested<I, B> {
    fn rank(&self) -> usize {
        self.between.rank() * self.inside.replicas() + self.inside.rank()
    }

    fn replicas(&self) -> usize {
        self.between.replicas() * self.inside.replicas()
    }

    fn in_this_process(&self) -> usize {
        self.inside.in_this_process()
    }

    fn exchange(&self, message: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        self.run(|nested| {
            let own = framed(&nested.inside(|inside| inside.exchange(message))?);
            let all = nested.led(|between| between.exchange(&own))?.unwrap_or_default();
            Ok(unframed(&nested.broadcast(&all.concat())?))
        })
    }

    fn all_reduce(&self, values: Tensor<1>) -> Result<Tensor<1>, Error> {
        self.run(|nested| {
            check_values(&values)?;
            let sum = nested.sum_inside(values.clone())?;
            let sum = nested.led(|between| between.all_reduce(sum))?;
            nested.hand_out(sum, length(&values), &values)
        })
    }

    fn reduce_scatter(&self, parts: Vec<Tensor<1>>) -> Result<Tensor<1>, Error> {
        self.run(|nested| {
            check_parts(&parts, nested.replicas())?;
            let like = parts[nested.rank()].clone();
            let lengths = lengths(&parts);
            let replicas = nested.inside.replicas();
            // The lengths for each process.
            let processes: Vec<usize> = lengths.chunks(replicas).map(|lengths| lengths.iter().sum()).collect();
            let sum = nested.sum_inside(joined(parts, &like.device()))?;
            let sum = nested.led(|between| between.reduce_scatter(cut(&sum, &processes)))?;
            let outer = nested.between.rank();
            let own = nested.hand_out(sum, processes[outer], &like)?;
            let own = cut(&own, &lengths[outer * replicas..][..replicas]);
            Ok(own[nested.inside.rank()].clone())
        })
    }

    fn all_gather(&self, values: Tensor<1>, lengths: &[usize]) -> Result<Vec<Tensor<1>>, Error> {
        self.run(|nested| {
            check_gather(&values, lengths, nested.rank(), nested.replicas())?;
            let replicas = nested.inside.replicas();
            let own = &lengths[nested.between.rank() * replicas..][..replicas];
            let processes: Vec<usize> = lengths.chunks(replicas).map(|lengths| lengths.iter().sum()).collect();
            let (like, device) = (nothing(&values.device()), values.device());
            let gathered = nested.inside(|inside| inside.all_gather(values, own))?;
            let all = nested.led(|between| between.all_gather(joined(gathered, &device), &processes))?;
            let all = all.map(|all| joined(all, &device));
            Ok(cut(&nested.hand_out(all, processes.iter().sum(), &like)?, lengths))
        })
    }

    fn leave(&self, reason: &str) {
        self.inside.leave(reason);
        self.between.leave(&format!("replica {}: {reason}", self.rank()));
    }
}

impl<I: Communicator, B: Communicator> Drop for Nested<I, B> {
    fn drop(&mut self) {
        // `inside` is dropped with this replica, `between` is shared.
        self.leave(if std::thread::panicking() { "its thread panicked" } else { "its communicator was dropped" });
    }
}

/// The error with other ranks.
fn with_ranks(error: Error, of: impl Fn(usize) -> usize) -> Error {
    match error {
        Error::Waited { rank, operation, missing, seconds } => {
            let missing = missing.into_iter().map(&of).collect();
            Error::Waited { rank: of(rank), operation, missing, seconds }
        }
        Error::Left { rank, reason } => Error::Left { rank: of(rank), reason },
        Error::Lengths { rank, operation, found, first, expected } => {
            Error::Lengths { rank: of(rank), operation, found, first: of(first), expected }
        }
        error => error,
    }
}

/// Messages in one, each after its length.
fn framed(messages: &[Vec<u8>]) -> Vec<u8> {
    let frame = |message: &Vec<u8>| [&(message.len() as u64).to_le_bytes()[..], message].concat();
    messages.iter().flat_map(frame).collect()
}

/// The messages that were [`framed`].
fn unframed(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut messages = vec![];
    while let Some((length, rest)) = bytes.split_first_chunk() {
        let (message, rest) = rest.split_at((u64::from_le_bytes(*length) as usize).min(rest.len()));
        messages.push(message.to_vec());
        bytes = rest;
    }
    messages
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn messages_are_framed_and_unframed(messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..6)) {
            prop_assert_eq!(unframed(&framed(&messages)), messages);
        }
    }
}
