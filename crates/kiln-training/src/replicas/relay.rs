//! Sums of gradients that are one chain over the samples of all replicas.
//!
//! Replica by replica adds its rows to a sum, so that the sum has the bits of one replica that computes the whole batch. A replica is one
//! operation behind the one before it, and both work at the same time. Sums go on in rounds, in which all replicas take part: in each, a
//! replica may hand one sum to the next. A replica that has handed on all joins the rounds until all have.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use burn::module::ParamId;
use burn::tensor::{DType, Device, Tensor};
use kiln_accumulation::{SentSum, SumRelay, SumUse};
use kiln_parallel::Communicator;
use serde::{Deserialize, Serialize};

use super::group::Group;
use crate::error::Error;

/// The sums of an attempt at a batch, on their way through the replicas.
pub(crate) struct Relay {
    /// The number of this replica's first sample in the whole batch.
    pub(crate) first_sample: usize,
    rounds: Arc<Mutex<Rounds>>,
}

struct Rounds {
    communicator: Arc<dyn Communicator>,
    device: Device,
    /// The replicas before and after this one that have a part of the batch.
    before: Option<usize>,
    after: Option<usize>,
    /// Sums that have come and were not taken yet.
    arrived: HashMap<SumUse, SentSum>,
    /// Whether no other sum comes.
    before_is_done: bool,
    /// Whether the attempt fails on a replica, so that no round follows.
    failed: bool,
    error: Option<Error>,
}

/// How far a replica is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
enum Standing {
    Computes,
    Done,
    Failed,
}

/// What a replica says in a round.
#[derive(Serialize, Deserialize)]
struct Message {
    standing: Standing,
    sum: Option<Label>,
}

/// A sum whose values follow.
#[derive(Serialize, Deserialize)]
struct Label {
    parameter: u64,
    operation: String,
    number: usize,
    shape: Vec<usize>,
    /// The bits of the factor.
    factor: Option<u32>,
}

impl Group {
    /// Begins an attempt at a batch, of which this replica has so many samples, and a loss or none. `None` in a group of one.
    ///
    /// # Errors
    /// [`Error::Parallel`].
    pub(crate) fn relay(&self, samples: usize, has_loss: bool, device: &Device) -> Result<Option<Relay>, Error> {
        let Some(communicator) = self.shared() else { return Ok(None) };
        let rank = communicator.rank();
        let own = (samples as u64) << 1 | u64::from(has_loss);
        let all = communicator.exchange(&own.to_le_bytes())?;
        let read = |own: &Vec<u8>| own.as_slice().try_into().ok().map(u64::from_le_bytes);
        let all: Vec<u64> = all.iter().map(read).collect::<Option<_>>().ok_or_else(|| {
            let reason = "the replicas are at other points of a step".to_owned();
            Error::Parallel(kiln_parallel::Error::Transfer { operation: "exchange", reason })
        })?;
        let has_loss = |rank: &usize| all[*rank] & 1 == 1;
        let (before, after) = match has_loss(&rank) {
            true => ((0..rank).rev().find(has_loss), (rank + 1..all.len()).find(has_loss)),
            false => (None, None),
        };
        let first_sample = all[..rank].iter().map(|own| own >> 1).sum::<u64>() as usize;
        let rounds = Rounds {
            communicator,
            device: device.clone().inner(),
            before,
            after,
            arrived: HashMap::new(),
            before_is_done: before.is_none(),
            failed: false,
            error: None,
        };
        Ok(Some(Relay { first_sample, rounds: Arc::new(Mutex::new(rounds)) }))
    }
}

impl Relay {
    /// The way of sums to and from the other replicas. After a failure it hands out nothing, and the attempt has no result.
    pub(crate) fn sums(&self) -> SumRelay {
        let (taking, giving) = (self.rounds.clone(), self.rounds.clone());
        SumRelay::new(
            move |of| with(&taking, |rounds| rounds.take(of)),
            move |of, sum| with(&giving, |rounds| rounds.give(of, sum)),
        )
    }

    /// Waits until all sums have come. Replicas that draw random numbers in one process take turns.
    pub(crate) fn wait(&self) {
        with(&self.rounds, |rounds| while !rounds.before_is_done && rounds.round(Standing::Computes, None) {});
    }

    /// Tells the other replicas that this one has taken a micro-batch, so that none waits beyond the time limit of a round.
    pub(crate) fn go_on(&self) {
        with(&self.rounds, |rounds| rounds.round(Standing::Computes, None));
    }

    /// Ends this replica's part in the attempt: waits for the others, or tells them of a failure.
    ///
    /// # Errors
    /// Those of `own`, [`Error::Parallel`], and [`Error::Replica`] for a sum that the operations of the last replica do not add to.
    pub(crate) fn finish<T>(self, own: Result<T, Error>) -> Result<T, Error> {
        with(&self.rounds, |rounds| {
            // Sums that no operation here adds to go on to the next replica.
            while own.is_ok() && !rounds.failed {
                let of = rounds.arrived.keys().next().filter(|_| rounds.after.is_some()).cloned();
                let sum = of.and_then(|of| rounds.arrived.remove_entry(&of));
                if sum.is_none() && rounds.before_is_done {
                    break;
                }
                rounds.round(Standing::Computes, sum);
            }
            let standing = if own.is_ok() { Standing::Done } else { Standing::Failed };
            while rounds.round(standing, None) {}
            let own = own?;
            match (rounds.error.take(), rounds.arrived.keys().next()) {
                (Some(error), _) => Err(error),
                (None, Some(of)) if !rounds.failed => {
                    let reason = format!(
                        "no operation {} number {} uses a parameter, expected those of the replica before",
                        of.operation, of.number
                    );
                    Err(Error::Replica { rank: rounds.communicator.rank(), reason })
                }
                _ => Ok(own),
            }
        })
    }
}

fn with<R>(rounds: &Mutex<Rounds>, act: impl FnOnce(&mut Rounds) -> R) -> R {
    act(&mut rounds.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Rounds {
    fn take(&mut self, of: &SumUse) -> Option<SentSum> {
        loop {
            if let Some(sum) = self.arrived.remove(of) {
                return Some(sum);
            }
            if self.before_is_done || !self.round(Standing::Computes, None) {
                return None;
            }
        }
    }

    fn give(&mut self, of: SumUse, sum: SentSum) -> Option<SentSum> {
        if self.after.is_none() {
            return Some(sum);
        }
        self.round(Standing::Computes, Some((of, sum)));
        None
    }

    /// Takes part in a round. Returns whether another one follows.
    fn round(&mut self, standing: Standing, sum: Option<(SumUse, SentSum)>) -> bool {
        if self.failed {
            return false;
        }
        self.rounds_on(standing, sum).unwrap_or_else(|error| {
            (self.failed, self.error) = (true, Some(error));
            false
        })
    }

    fn rounds_on(&mut self, standing: Standing, sum: Option<(SumUse, SentSum)>) -> Result<bool, Error> {
        let unreadable = |e: serde_json::Error| {
            Error::Parallel(kiln_parallel::Error::Transfer { operation: "exchange", reason: e.to_string() })
        };
        let (label, values) = sum.map(labelled).unzip();
        let own = serde_json::to_vec(&Message { standing, sum: label }).map_err(unreadable)?;
        let all: Vec<Message> = self
            .communicator
            .exchange(&own)?
            .iter()
            .map(|message| serde_json::from_slice(message).map_err(unreadable))
            .collect::<Result<_, _>>()?;
        if all.iter().any(|message| message.standing == Standing::Failed) {
            self.failed = true;
            return Ok(false);
        }
        let elements = |message: &Message| message.sum.as_ref().map_or(0, |sum| sum.shape.iter().product());
        let lengths: Vec<usize> = all.iter().map(elements).collect();
        let mut values = match all.iter().any(|message| message.sum.is_some()) {
            true => {
                let own = values.unwrap_or_else(|| Tensor::empty([0], (&self.device, DType::F32)));
                self.communicator.all_gather(own, &lengths)?
            }
            false => vec![],
        };
        let goes_on = all.iter().any(|message| message.standing != Standing::Done);
        if let Some(before) = self.before {
            self.before_is_done |= all[before].standing == Standing::Done;
            if let Some(label) = all.into_iter().nth(before).and_then(|message| message.sum) {
                let (of, sum) = read(label, values.swap_remove(before));
                self.arrived.insert(of, sum);
            }
        }
        Ok(goes_on)
    }
}

fn labelled((of, sum): (SumUse, SentSum)) -> (Label, Tensor<1>) {
    let label = Label {
        parameter: of.parameter.val(),
        operation: of.operation,
        number: of.number,
        shape: sum.shape.to_vec(),
        factor: sum.factor.map(f32::to_bits),
    };
    (label, sum.values)
}

fn read(label: Label, values: Tensor<1>) -> (SumUse, SentSum) {
    let Label { parameter, operation, number, shape, factor } = label;
    let sum = SentSum { values, shape: shape.into(), factor: factor.map(f32::from_bits) };
    (SumUse { parameter: ParamId::from(parameter), operation, number }, sum)
}

#[cfg(test)]
mod tests {
    use super::super::group::tests::each;
    use super::*;

    fn of(number: usize) -> SumUse {
        SumUse { parameter: ParamId::from(7), operation: "linear".into(), number }
    }

    fn sum(values: &[f32]) -> SentSum {
        let values = Tensor::from_floats(values, &Device::flex());
        SentSum { shape: values.shape(), values, factor: Some(0.5) }
    }

    /// Each of three replicas adds 1 to what it takes. Returns what the last one has.
    fn chain(uses: &[usize], begins: &[f32], has_loss: impl Fn(usize) -> bool + Sync) -> Vec<Result<Vec<f32>, String>> {
        each(|rank, group| {
            let relay = group.relay(4, has_loss(rank), &Device::flex()).unwrap().unwrap();
            assert_eq!(relay.first_sample, 4 * rank);
            let (way, mut kept) = (relay.sums(), vec![]);
            for number in uses.iter().filter(|_| has_loss(rank)) {
                let before = way.take(&of(*number)).unwrap_or_else(|| sum(begins));
                assert_eq!(before.factor, Some(0.5));
                let added = SentSum { values: before.values + 1.0, ..before };
                kept.extend(
                    way.give(of(*number), added).map(|kept| kept.values.into_data().try_to_vec::<f32>().unwrap()),
                );
            }
            relay.finish(Ok(kept.concat())).map_err(|error| error.to_string())
        })
    }

    #[test]
    fn a_sum_goes_through_all_replicas_that_have_samples() {
        let last = vec![4.0, 5.0, 4.0, 5.0];
        assert_eq!(chain(&[0, 1], &[1.0, 2.0], |_| true), [Ok(vec![]), Ok(vec![]), Ok(last)]);
        let last = vec![3.0, 3.0];
        assert_eq!(chain(&[0, 1], &[1.0], |rank| rank != 1), [Ok(vec![]), Ok(vec![]), Ok(last.clone())]);
        assert_eq!(chain(&[0, 1], &[1.0], |rank| rank != 2), [Ok(vec![]), Ok(last), Ok(vec![])]);
        // A parameter without values.
        assert_eq!(chain(&[0], &[], |_| true), [Ok(vec![]), Ok(vec![]), Ok(vec![])]);
        assert_eq!(chain(&[0], &[1.0], |_| false), [Ok(vec![]), Ok(vec![]), Ok(vec![])]);
    }

    #[test]
    fn a_sum_passes_a_replica_whose_operations_do_not_use_it() {
        let ended = each(|rank, group| {
            let relay = group.relay(4, true, &Device::flex()).unwrap().unwrap();
            let way = relay.sums();
            if rank == 0 {
                assert!(way.give(of(0), sum(&[3.0])).is_none());
            }
            let found = if rank == 2 { way.take(&of(0)) } else { None };
            relay.finish(Ok(found.map(|found| found.values.into_scalar::<f32>()))).unwrap()
        });
        assert_eq!(ended, [None, None, Some(3.0)]);
        let ended = each(|rank, group| {
            let relay = group.relay(4, true, &Device::flex()).unwrap().unwrap();
            if rank == 0 {
                assert!(relay.sums().give(of(0), sum(&[3.0])).is_none());
            }
            relay.finish(Ok(())).map_err(|error| error.to_string())
        });
        assert!(ended[0].is_ok() && ended[1].is_ok());
        assert!(ended[2].as_ref().unwrap_err().contains("no operation linear number 0"), "{ended:?}");
    }

    #[test]
    fn a_failure_ends_the_rounds_of_all() {
        let ended = each(|rank, group| {
            let relay = group.relay(4, true, &Device::flex()).unwrap().unwrap();
            if rank == 0 {
                return relay.finish::<()>(Err(Error::NothingToLearn { step: 3 })).is_err();
            }
            // What the first replica does not give is not waited for.
            assert!(relay.sums().take(&of(0)).is_none());
            relay.wait();
            relay.go_on();
            relay.finish(Ok(())).is_err()
        });
        assert_eq!(ended, [true, false, false]);
    }
}
