//! The rounds in which the replicas of one process meet, as a state machine without threads and tensors.

use std::fmt;
use std::sync::Arc;

use crate::error::Error;

/// The operation that a replica calls. All replicas of a round have to call the same one.
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
/// The results of a round are kept until every replica has taken them. The next round may gather before that, but it cannot be complete: it
/// needs the replicas that have not taken the results yet.
#[cfg_attr(test, derive(Clone))]
pub(super) struct Rendezvous<T> {
    /// Rounds that are complete.
    round: u64,
    /// The values that replicas brought to the round that gathers.
    brought: Vec<Option<T>>,
    /// The operation of that round, and the first replica that called it.
    call: Option<(usize, Call)>,
    /// The results of the last complete round, and how many replicas have yet to take them.
    results: Option<(Arc<[T]>, usize)>,
    /// The error that broke the group.
    end: Option<Error>,
}

impl<T> Rendezvous<T> {
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

    /// The values that all replicas brought to `round`, which this replica has joined; none while the round gathers.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What a replica does next. Each step happens while it holds the lock.
    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Step {
        /// Joins a round with this call, and then takes the outcome as soon as there is one.
        Meet(&'static str),
        /// Gives up waiting in a round, if it waits, else meets.
        MeetOrExpire(&'static str),
        Leave,
    }

    type Outcome = Result<Vec<(usize, usize)>, Error>;

    #[derive(Clone)]
    struct State {
        rendezvous: Rendezvous<(usize, usize)>,
        /// For each replica: the steps done, the round that it waits in, and what came out.
        replicas: Vec<(usize, Option<u64>, Vec<Outcome>)>,
    }

    /// Runs every order of the replicas' steps, and calls `check` with what came out on each replica.
    fn explore(programs: &[Vec<Step>], check: &mut impl FnMut(&[Vec<Outcome>])) -> usize {
        let replicas = vec![(0, None, vec![]); programs.len()];
        let mut open = vec![State { rendezvous: Rendezvous::new(programs.len()), replicas }];
        let mut orders = 0;
        while let Some(state) = open.pop() {
            let before = open.len();
            for (rank, program) in programs.iter().enumerate() {
                open.extend(next(&state, rank, program));
            }
            if open.len() == before {
                let outcomes: Vec<Vec<Outcome>> =
                    state.replicas.iter().map(|(_, _, outcomes)| outcomes.clone()).collect();
                for (rank, (done, waits, _)) in state.replicas.iter().enumerate() {
                    assert!(*done == programs[rank].len() && waits.is_none(), "replica {rank} waits: {outcomes:?}");
                }
                assert!(state.rendezvous.results.is_none() || state.rendezvous.end.is_some(), "results are kept");
                check(&outcomes);
                orders += 1;
            }
        }
        orders
    }

    /// The states that a step of a replica leads to; none while the replica waits.
    fn next(state: &State, rank: usize, program: &[Step]) -> Vec<State> {
        let (done, waits, _) = state.replicas[rank];
        let Some(step) = program.get(done) else { return vec![] };
        let mut after = state.clone();
        let State { rendezvous, replicas } = &mut after;
        let (done, waiting, outcomes) = &mut replicas[rank];
        match (step, waits) {
            (Step::Leave, _) => {
                rendezvous.leave(rank, "done");
                *done += 1;
            }
            (Step::Meet(operation) | Step::MeetOrExpire(operation), None) => {
                let call = Call { operation, lengths: vec![] };
                match rendezvous.join(rank, call, (rank, outcomes.len())) {
                    Ok(round) => *waiting = Some(round),
                    Err(error) => {
                        outcomes.push(Err(error));
                        *done += 1;
                    }
                }
            }
            (step, Some(round)) => {
                let outcome = rendezvous.outcome(rank, round).map(|outcome| outcome.map(|all| all.to_vec()));
                let outcome = match (outcome, step) {
                    (Some(outcome), _) => outcome,
                    (None, Step::MeetOrExpire(_)) => Err(rendezvous.expire(rank, 5)),
                    (None, _) => return vec![],
                };
                outcomes.push(outcome);
                (*waiting, *done) = (None, *done + 1);
            }
        }
        vec![after]
    }

    fn all(round: usize, replicas: usize) -> Outcome {
        Ok((0..replicas).map(|rank| (rank, round)).collect())
    }

    #[test]
    fn every_replica_gets_every_round_in_every_order() {
        for (replicas, rounds) in [(1, 3), (2, 4), (3, 2)] {
            let program = vec![Step::Meet("sum"); rounds];
            let expected: Vec<Outcome> = (0..rounds).map(|round| all(round, replicas)).collect();
            let orders = explore(&vec![program; replicas], &mut |outcomes| {
                assert!(outcomes.iter().all(|outcomes| *outcomes == expected), "{outcomes:?}");
            });
            assert!(replicas == 1 || orders > 100, "{orders} orders");
        }
    }

    #[test]
    fn a_replica_that_leaves_ends_the_others_and_takes_no_result_from_them() {
        let stays = vec![Step::Meet("sum"); 3];
        let leaves = vec![Step::Meet("sum"), Step::Leave, Step::Meet("sum")];
        let left = Err(Error::Left { rank: 1, reason: "done".into() });
        explore(&[stays.clone(), leaves, stays], &mut |outcomes| {
            for (rank, outcomes) in outcomes.iter().enumerate() {
                let expected = [all(0, 3), left.clone(), left.clone()];
                assert_eq!(outcomes[..], expected[..if rank == 1 { 2 } else { 3 }], "replica {rank}");
            }
        });
    }

    #[test]
    fn another_operation_ends_all() {
        let sums = vec![Step::Meet("sum"), Step::Meet("sum")];
        let gathers = vec![Step::Meet("sum"), Step::Meet("gather")];
        explore(&[sums.clone(), gathers, sums], &mut |outcomes| {
            let failed = |outcomes: &Vec<Outcome>| matches!(&outcomes[1], Err(Error::Lengths { rank, first, .. }) if rank != first);
            let late = |outcomes: &Vec<Outcome>| matches!(&outcomes[1], Err(Error::Broken { .. }));
            assert!(outcomes.iter().all(|outcomes| outcomes[0] == all(0, 3) && (failed(outcomes) || late(outcomes))));
            assert!(outcomes.iter().filter(|outcomes| failed(outcomes)).count() >= 2, "{outcomes:?}");
        });
    }

    #[test]
    fn a_replica_that_gives_up_ends_the_others_and_names_those_that_are_missing() {
        let gives_up = vec![Step::MeetOrExpire("sum"); 2];
        let waits = vec![Step::Meet("sum"); 2];
        let mut waited = 0;
        explore(&[gives_up, waits.clone(), waits], &mut |outcomes| {
            // A round is complete on all replicas or on none.
            for round in 0..2 {
                let complete = outcomes.iter().filter(|outcomes| outcomes[round].is_ok()).count();
                assert!(complete == 0 || complete == 3, "{outcomes:?}");
            }
            for (rank, outcomes) in outcomes.iter().enumerate() {
                for outcome in outcomes {
                    match outcome {
                        Err(Error::Waited { rank: named, missing, seconds: 5, .. }) => {
                            assert!(*named == rank && !missing.is_empty() && !missing.contains(&rank));
                            waited += 1;
                        }
                        Err(Error::Broken { .. }) | Ok(_) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            }
        });
        assert!(waited > 0);
    }
}
