//! Votes by which replicas decide together whether a step goes on, and with which numbers.

use serde::{Deserialize, Serialize};

use super::communicator::Communicator;
use crate::error::Error;

/// The outcome of one replica's work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    /// The work is done.
    Done,
    /// Memory ran out, for this reason. The replicas can try again together.
    OutOfMemory(String),
    /// The work failed for this reason and cannot be tried again.
    Failed(String),
}

/// A number of a vote, and how the numbers of the replicas become one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Number {
    /// The sum of all, at most `u64::MAX`. Example: the samples of a batch.
    Sum(u64),
    /// The least of all. Example: the size of a micro-batch that fits on each device.
    Least(u64),
    /// The largest of all. Example: the checkpoint plan that saves the most memory.
    Most(u64),
    /// All replicas must have the same number of this name. Example: the step.
    Equal(String, u64),
}

impl Number {
    /// A number of this name that all replicas must share.
    pub fn equal(name: &str, value: u64) -> Self {
        Self::Equal(name.into(), value)
    }

    /// The value of this replica.
    pub fn value(&self) -> u64 {
        match self {
            Self::Sum(value) | Self::Least(value) | Self::Most(value) | Self::Equal(_, value) => *value,
        }
    }

    /// The kind of the number, without its value.
    fn kind(&self) -> &str {
        match self {
            Self::Sum(_) => "a sum",
            Self::Least(_) => "a least number",
            Self::Most(_) => "a largest number",
            Self::Equal(name, _) => name,
        }
    }
}

/// The vote of one replica: how its work ended, and its numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vote<const N: usize> {
    /// The outcome of its work.
    pub status: Status,
    /// Its numbers, of the same kinds and in the same order on every replica.
    pub numbers: [Number; N],
}

/// The result of a vote. All replicas get the same verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "the other replicas act on the same verdict"]
pub enum Verdict<const N: usize> {
    /// All replicas are done. The numbers of all, in the order of the vote.
    Done([u64; N]),
    /// Memory ran out on some replicas, and none failed.
    OutOfMemory {
        /// The first replica whose memory ran out.
        rank: usize,
        /// Its reason.
        reason: String,
        /// The numbers of all, in the order of the vote.
        numbers: [u64; N],
    },
    /// A replica failed. Its numbers may mean nothing, so there are none.
    Failed {
        /// The first replica that failed.
        rank: usize,
        /// Its reason.
        reason: String,
    },
}

/// Exchanges the votes of all replicas once. A failure outweighs a lack of memory, which outweighs work that is done.
///
/// # Errors
/// Those of [`exchange`](Communicator::exchange). [`Error::Differs`] on every replica when a number that all must share differs, unless a
/// replica failed. [`Error::Lengths`] on every replica when votes have other kinds of numbers.
pub fn agree<const N: usize>(communicator: &dyn Communicator, vote: Vote<N>) -> Result<Verdict<N>, Error> {
    let message = (&vote.status, vote.numbers.as_slice());
    let message = serde_json::to_vec(&message).map_err(|e| unreadable(communicator.rank(), &e))?;
    let votes = communicator.exchange(&message)?;
    let read = |(rank, vote): (usize, &Vec<u8>)| serde_json::from_slice(vote).map_err(|e| unreadable(rank, &e));
    let votes: Vec<(Status, Vec<Number>)> = votes.iter().enumerate().map(read).collect::<Result<_, _>>()?;
    decide(&votes)
}

fn decide<const N: usize>(votes: &[(Status, Vec<Number>)]) -> Result<Verdict<N>, Error> {
    let failed = votes.iter().enumerate().find_map(|(rank, (status, _))| match status {
        Status::Failed(reason) => Some(Verdict::Failed { rank, reason: reason.clone() }),
        _ => None,
    });
    if let Some(failed) = failed {
        return Ok(failed);
    }
    let kinds = |numbers: &[Number]| numbers.iter().map(Number::kind).collect::<Vec<_>>().join(", ");
    let expected = votes.first().map_or_else(String::new, |(_, numbers)| kinds(numbers));
    for (rank, (_, numbers)) in votes.iter().enumerate() {
        if numbers.len() != N || kinds(numbers) != expected {
            let found = format!("a vote on [{}]", kinds(numbers));
            return Err(Error::Lengths {
                rank,
                operation: "agree",
                found,
                first: 0,
                expected: format!("[{expected}]"),
            });
        }
    }
    let mut numbers = [0; N];
    for (index, number) in numbers.iter_mut().enumerate() {
        *number = together(&votes.iter().map(|(_, numbers)| &numbers[index]).collect::<Vec<_>>())?;
    }
    let out_of_memory = votes.iter().enumerate().find_map(|(rank, (status, _))| match status {
        Status::OutOfMemory(reason) => Some(Verdict::OutOfMemory { rank, reason: reason.clone(), numbers }),
        _ => None,
    });
    Ok(out_of_memory.unwrap_or(Verdict::Done(numbers)))
}

/// Combines the numbers of all replicas, which are of one kind, into one.
fn together(numbers: &[&Number]) -> Result<u64, Error> {
    let values = || numbers.iter().map(|number| number.value());
    match numbers.first() {
        None => Ok(0),
        Some(Number::Sum(_)) => Ok(values().fold(0, u64::saturating_add)),
        Some(Number::Least(_)) => Ok(values().min().unwrap_or(0)),
        Some(Number::Most(_)) => Ok(values().max().unwrap_or(0)),
        Some(Number::Equal(name, first)) => match values().all(|value| value == *first) {
            true => Ok(*first),
            false => Err(Error::Differs { what: name.clone(), values: values().collect() }),
        },
    }
}

fn unreadable(rank: usize, error: &serde_json::Error) -> Error {
    Error::Transfer { operation: "agree", reason: format!("the vote of replica {rank}: {error}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vote(status: Status, samples: u64, micro_batch: u64, step: u64) -> (Status, Vec<Number>) {
        (status, vec![Number::Sum(samples), Number::Least(micro_batch), Number::equal("step", step)])
    }

    #[test]
    fn numbers_become_one() {
        let votes = [vote(Status::Done, 32, 8, 5), vote(Status::Done, 31, 4, 5), vote(Status::Done, 0, 16, 5)];
        assert_eq!(decide(&votes), Ok(Verdict::Done([63, 4, 5])));
        let most = [vote(Status::Done, u64::MAX, 1, 0), vote(Status::Done, 2, 1, 0)];
        assert_eq!(decide(&most), Ok(Verdict::Done([u64::MAX, 1, 0])));
    }

    #[test]
    fn the_worst_status_wins_and_the_first_replica_that_has_it_is_named() {
        let out = |text: &str| Status::OutOfMemory(text.into());
        let failed = |text: &str| Status::Failed(text.into());
        let votes = [vote(Status::Done, 1, 8, 5), vote(out("a"), 2, 4, 5), vote(out("b"), 3, 2, 5)];
        let expected = Verdict::OutOfMemory { rank: 1, reason: "a".into(), numbers: [6, 2, 5] };
        assert_eq!(decide(&votes), Ok(expected));
        // The numbers of a replica that failed do not matter, not even their kinds.
        let votes = [vote(out("a"), 2, 4, 5), vote(failed("c"), 0, 0, 0), (failed("d"), vec![])];
        assert_eq!(decide::<3>(&votes), Ok(Verdict::Failed { rank: 1, reason: "c".into() }));
    }

    #[test]
    fn numbers_that_should_be_equal_are_listed() {
        let votes = [vote(Status::Done, 1, 1, 5), vote(Status::Done, 1, 1, 5), vote(Status::Done, 1, 1, 6)];
        let error = decide::<3>(&votes).unwrap_err();
        assert_eq!(error, Error::Differs { what: "step".into(), values: vec![5, 5, 6] });
        assert_eq!(error.to_string(), "the replicas differ in step: replica 0 has 5, replica 1 has 5, replica 2 has 6");
    }

    #[test]
    fn votes_on_other_numbers_are_refused() {
        let votes = [vote(Status::Done, 1, 1, 5), (Status::Done, vec![Number::Sum(1)])];
        let error = decide::<3>(&votes).unwrap_err();
        assert!(matches!(error, Error::Lengths { rank: 1, first: 0, operation: "agree", .. }), "{error}");
        assert_eq!(
            error.to_string(),
            "replica 1 brought a vote on [a sum] to agree, expected [a sum, a least number, step] as replica 0 did"
        );
    }
}
