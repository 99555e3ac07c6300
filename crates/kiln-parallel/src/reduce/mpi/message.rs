//! Small messages that processes send before and after their values. MPI delivers them without waiting for the receiver.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// The most bytes of a call or a reason. With the rest of a message they stay below the 4 KiB that Open MPI sends at once.
const MOST: usize = 1000;

/// The message that a process sends to every other at the start of a round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Header {
    /// The operation and its lengths, which must be the same on all processes.
    pub(super) call: String,
    /// Bytes of the message that follows.
    pub(super) bytes: usize,
    /// The most elements of a piece in which message and values follow.
    pub(super) piece: NonZeroUsize,
}

/// The message that a process sends to every other when the group ends for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct End {
    /// The rounds that the process has completed. The others can complete as many.
    pub(super) round: u64,
    pub(super) reason: Reason,
}

/// The reason why the group ends for a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Reason {
    /// Replica `rank` has left: the sender, or a replica that the sender learned it from.
    Left { rank: usize, reason: String },
    /// The process has waited in vain for the replicas in `missing`.
    Waited { operation: String, missing: Vec<usize>, seconds: u64 },
    /// Another reason, whose text names the replica that it began with.
    Broken(String),
}

impl Header {
    pub(super) fn new(call: &str, bytes: usize, piece: NonZeroUsize) -> Self {
        Self { call: shortened(call), bytes, piece }
    }
}

impl Reason {
    /// The reason of replica `own`, whose group ended with this error.
    pub(super) fn of(error: &Error, own: usize) -> Self {
        match error {
            Error::Left { rank, reason } => Self::Left { rank: *rank, reason: shortened(reason) },
            Error::Broken { reason } => Self::Broken(shortened(reason)),
            Error::Waited { operation, missing, seconds, .. } => {
                // A list of thousands would be too long.
                let missing = missing.iter().take(MOST / 10).copied().collect();
                Self::Waited { operation: (*operation).into(), missing, seconds: *seconds }
            }
            error => Self::Broken(shortened(&format!("replica {own}: {error}"))),
        }
    }

    /// The error of replica `own`, which is in the round of `operation` when replica `from` ends for this reason.
    pub(super) fn error(&self, from: usize, own: usize, operation: &'static str) -> Error {
        match self {
            Self::Left { rank, reason } => Error::Left { rank: *rank, reason: reason.clone() },
            Self::Broken(reason) => Error::Broken { reason: reason.clone() },
            // Both waited for the same.
            Self::Waited { operation: theirs, missing, seconds } if theirs == operation && !missing.contains(&own) => {
                Error::Waited { rank: own, operation, missing: missing.clone(), seconds: *seconds }
            }
            Self::Waited { operation, missing, seconds } => {
                Error::Broken { reason: format!("replica {from} waited {seconds} s in {operation} for {missing:?}") }
            }
        }
    }
}

/// A text that fits, and differs from others that differ.
fn shortened(text: &str) -> String {
    if text.len() <= MOST {
        return text.to_owned();
    }
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    let start: String = text.char_indices().take_while(|(at, _)| *at < MOST / 2).map(|(_, char)| char).collect();
    format!("{start}... (hash {:016x})", hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_shortened_and_stay_different() {
        let long = "€".repeat(3000);
        let (one, two) = (shortened(&format!("{long}1")), shortened(&format!("{long}2")));
        assert!(one.len() < MOST && one.starts_with("€€€"));
        assert_ne!(one, two);
        assert_eq!(shortened("short"), "short");
    }

    #[test]
    fn who_waited_for_the_same_gets_the_same_error() {
        let waited = Error::Waited { rank: 0, operation: "exchange", missing: vec![2], seconds: 5 };
        let reason = Reason::of(&waited, 0);
        let expected = Error::Waited { rank: 1, operation: "exchange", missing: vec![2], seconds: 5 };
        assert_eq!(reason.error(0, 1, "exchange"), expected);
        // The replica that they waited for.
        let broken = Error::Broken { reason: "replica 0 waited 5 s in exchange for [2]".into() };
        assert_eq!(reason.error(0, 2, "exchange"), broken);
        assert_eq!(reason.error(0, 1, "all_reduce"), broken);
    }

    #[test]
    fn the_replica_that_it_began_with_is_named() {
        let left = Error::Left { rank: 3, reason: "a full disk".into() };
        assert_eq!(Reason::of(&left, 1).error(1, 0, "exchange"), left);
        let mistake =
            Error::InvalidSetting { name: "number of parts", value: "0".into(), expected: "one for each replica" };
        let broken = Error::Broken { reason: "replica 1: number of parts = 0: expected one for each replica".into() };
        let first = Reason::of(&mistake, 1).error(1, 0, "exchange");
        assert_eq!(first, broken);
        assert_eq!(Reason::of(&first, 0).error(0, 2, "exchange"), broken);
    }
}
