//! The samples that make a batch, the part of a replica in it, and the state from which a run resumes.

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3Default;

use crate::error::Error;

use super::buckets::{Buckets, Epoch};
use super::epoch_order::{EpochOrder, Order};
use super::loader_state::LoaderState;

/// One of several replicas of a model that are trained together, each on its part of every batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replica {
    index: usize,
    count: usize,
}

impl Default for Replica {
    fn default() -> Self {
        Self::ALONE
    }
}

impl Replica {
    /// The only replica.
    pub const ALONE: Self = Self { index: 0, count: 1 };

    /// Replica number `index` of `count`, counted from zero.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] when `index` is not below `count`.
    pub fn new(index: usize, count: usize) -> Result<Self, Error> {
        if index >= count {
            return Err(Error::setting("replica", format!("{index} of {count}"), "an index below the count"));
        }
        Ok(Self { index, count })
    }

    /// The number of this replica, counted from zero.
    pub fn index(self) -> usize {
        self.index
    }

    /// How many replicas there are.
    pub fn count(self) -> usize {
        self.count
    }

    /// This replica's part of `samples`: contiguous; the sizes of two parts differ by at most one sample.
    pub(super) fn part(self, samples: usize) -> Range<usize> {
        let bound = |index: usize| (index as u128 * samples as u128 / self.count as u128) as usize;
        bound(self.index)..bound(self.index + 1)
    }
}

/// The policy for the samples at the end of an epoch that do not fill a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Remainder {
    /// They make a last, short batch; the parts of two replicas differ by at most one sample. [`Sampler::new`]
    /// refuses a last batch with fewer samples than replicas, because a replica would have none.
    #[default]
    Keep,
    /// They are left out. Each order leaves out others.
    Drop,
    /// The samples at the epoch's beginning are repeated to fill the batch, as torch's `DistributedSampler` does.
    Pad,
}

/// Which samples make a batch: a pure function of (seed, epoch, batch), the same in every process.
///
/// The samples of a global batch are chosen first and then divided among the replicas. The number of replicas changes
/// neither the samples of a batch nor their order, so that a run resumes with more or fewer replicas and trains on the same
/// batches (the elastic determinism of MosaicML's Streaming). Only the settings are stored, and with
/// [`bucketed`](Self::bucketed) the lengths: the billionth sample is found as fast as the first.
///
/// ```
/// use kiln_data::{Order, Remainder, Replica, Sampler};
///
/// let of = |replica| Sampler::new(1_000_000_000, 64, Order::Shuffled { seed: 7 }, Remainder::Drop, replica);
/// let (alone, second) = (of(Replica::ALONE)?, of(Replica::new(1, 2)?)?);
/// assert_eq!(second.ids(3, 12_345_678), alone.ids(3, 12_345_678)[32..]);
/// # Ok::<(), kiln_data::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Sampler {
    /// The first sample, when the samples are a part of a data set.
    first: usize,
    samples: usize,
    batch_size: usize,
    order: Order,
    remainder: Remainder,
    replica: Replica,
    buckets: Option<Buckets>,
    /// A hash of the settings that decide the batches and are not in a [`LoaderState`].
    fingerprint: u64,
}

impl Sampler {
    /// A sampler of batches of `batch_size` samples of `0..samples`, counted over all replicas.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for no samples, or more than half of `usize::MAX`; for a batch size of 0, above the number
    /// of samples, or not a multiple of the replicas; for weights of another number of samples; and under
    /// [`Remainder::Keep`] for a last batch with fewer samples than replicas.
    pub fn new(
        samples: usize,
        batch_size: usize,
        order: Order,
        remainder: Remainder,
        replica: Replica,
    ) -> Result<Self, Error> {
        let refused = |field, value: String, expected| Err(Error::setting(field, value, expected));
        if batch_size == 0 {
            return refused("batch size", "0".into(), "at least 1");
        }
        if samples == 0 {
            return refused("samples", "0".into(), "at least 1");
        }
        if samples > usize::MAX / 2 {
            return refused("samples", samples.to_string(), "at most half of usize::MAX");
        }
        if batch_size > samples {
            return refused(
                "batch size",
                format!("{batch_size}, with {samples} samples"),
                "at most the number of samples",
            );
        }
        let count = replica.count();
        if !batch_size.is_multiple_of(count) {
            return refused("batch size", format!("{batch_size}, with {count} replicas"), "a multiple of the replicas");
        }
        if let Order::Weighted { weights, .. } = &order
            && weights.len() != samples
        {
            return refused("weights", format!("{} for {samples} samples", weights.len()), "one weight a sample");
        }
        let last = samples % batch_size;
        if remainder == Remainder::Keep && last > 0 && last < count {
            let value = format!("kept, a last batch of {last} for {count} replicas");
            return refused(
                "remainder",
                value,
                "at least one sample a replica, or a remainder that is dropped or padded",
            );
        }
        let fingerprint = fingerprint(&order, remainder, None);
        Ok(Self { first: 0, samples, batch_size, order, remainder, replica, buckets: None, fingerprint })
    }

    /// Puts samples of similar length into the same batch, so that less of it is padding: the epoch's order is cut into
    /// pools of `pool` batches; the samples of a pool are sorted by `lengths` and cut into batches, which are put in random
    /// order. An epoch visits the same samples as without buckets.
    ///
    /// Of the paragraphs of Moby-Dick in batches of 32, padded to the longest, 76 % is padding; in pools of 4, 16 and 64
    /// batches 51 %, 24 % and 12 %. A larger pool has less padding, and its batches are less random. With a pool of one
    /// batch only the order within a batch changes. The time to choose a batch is proportional to the pool. The samples of
    /// an epoch's incomplete last batch are not sorted. Under [`Order::Sequential`] the order of batches is not random.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for a pool of 0, and when the number of lengths is not that of the samples.
    pub fn bucketed(self, lengths: impl Into<Arc<[u32]>>, pool: usize) -> Result<Self, Error> {
        let lengths = lengths.into();
        if pool == 0 {
            return Err(Error::setting("pool", "0", "at least 1"));
        }
        if lengths.len() != self.samples {
            let value = format!("{} for {} samples", lengths.len(), self.samples);
            return Err(Error::setting("lengths", value, "one length a sample"));
        }
        let buckets = Some(Buckets { lengths, pool });
        let fingerprint = fingerprint(&self.order, self.remainder, buckets.as_ref());
        Ok(Self { buckets, fingerprint, ..self })
    }

    /// A sampler over a part of the samples, or over a part of the draws if they are weighted. The part may be empty. Lengths are ignored
    /// from then on.
    pub(crate) fn part(&self, samples: Range<usize>) -> Self {
        let batch_size = self.batch_size.min(samples.len()).max(1);
        Self { first: self.first + samples.start, samples: samples.len(), batch_size, buckets: None, ..self.clone() }
    }

    /// Number of samples.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// Samples in a batch that is not short, over all replicas.
    pub fn batch_size(&self) -> usize {
        self.batch_size
    }

    /// The replica whose part [`ids`](Self::ids) gives.
    pub fn replica(&self) -> Replica {
        self.replica
    }

    /// Batches in an epoch, the same for every replica.
    pub fn batches(&self) -> usize {
        match self.remainder {
            Remainder::Drop => self.samples / self.batch_size,
            Remainder::Keep | Remainder::Pad => self.samples.div_ceil(self.batch_size),
        }
    }

    /// Samples in the first `batches` batches of an epoch, over all replicas and counting repetitions.
    pub fn samples_in(&self, batches: usize) -> usize {
        let whole = batches.min(self.batches()) * self.batch_size;
        if self.remainder == Remainder::Keep { whole.min(self.samples) } else { whole }
    }

    /// The samples of batch `index` of `epoch` that this replica takes; none after the last batch.
    pub fn ids(&self, epoch: u64, index: usize) -> Vec<usize> {
        let range = self.samples_in(index)..self.samples_in(index.saturating_add(1));
        let part = self.replica.part(range.len());
        let order = self.order.of_epoch(self.samples, epoch);
        if let Some(buckets) = &self.buckets
            && range.end <= self.samples
            && range.len() == self.batch_size
        {
            let (full, batch_size) = (self.samples / self.batch_size, self.batch_size);
            let epoch = Epoch { order: &order, seed: self.order.seed(), number: epoch, full, batch_size };
            return buckets.batch(&epoch, index)[part].to_vec();
        }
        let wrapped = |position: usize| if position < self.samples { position } else { position - self.samples };
        part.map(|offset| self.of(&order, wrapped(range.start + offset))).collect()
    }

    fn of(&self, order: &EpochOrder, position: usize) -> usize {
        match &self.order {
            Order::Weighted { .. } => order.at(self.first + position),
            Order::Sequential | Order::Shuffled { .. } => self.first + order.at(position),
        }
    }

    /// The sample at a `position` of an epoch below [`samples`](Self::samples), lengths aside.
    pub(crate) fn at(&self, epoch: u64, position: usize) -> usize {
        self.of(&self.order.of_epoch(self.samples, epoch), position)
    }

    /// The position of a run whose next batch is `batch` of `epoch`; see [`resume`](Self::resume).
    pub fn state(&self, epoch: u64, batch: usize) -> LoaderState {
        let (samples, batch_size, order) = (self.samples, self.batch_size, self.fingerprint);
        LoaderState { epoch, batch, samples, batch_size, order }
    }

    /// The (epoch, batch) at which `state` resumes. It may have been saved by another number of replicas.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for the state of a sampler with other batches (another number of samples, batch size, or
    /// order: its kind, seed, weights, remainder or buckets), and for a batch after the epoch's end.
    pub fn resume(&self, state: &LoaderState) -> Result<(u64, usize), Error> {
        let here = self.state(state.epoch, state.batch);
        let refused = |value, expected| Err(Error::InvalidSetting { name: "loader state", value, expected });
        let differs = |what, there: usize, here: usize| {
            refused(format!("of {there} {what}, where this run has {here}"), "a state of the same run")
        };
        if state.samples != here.samples {
            return differs("samples", state.samples, here.samples);
        }
        if state.batch_size != here.batch_size {
            return differs("samples a batch", state.batch_size, here.batch_size);
        }
        if state.order != here.order {
            let value = "of another order (its kind, seed, weights, remainder, or buckets)".into();
            return refused(value, "a state of the same run");
        }
        if state.batch > self.batches() {
            return refused(format!("batch {} of {}", state.batch, self.batches()), "a batch of the epoch or its end");
        }
        Ok((state.epoch, state.batch))
    }
}

fn fingerprint(order: &Order, remainder: Remainder, buckets: Option<&Buckets>) -> u64 {
    let mut hash = Xxh3Default::new();
    let mut number = |number: u64| hash.update(&number.to_le_bytes());
    match order {
        Order::Sequential => number(0),
        Order::Shuffled { seed } => [1, *seed].into_iter().for_each(number),
        Order::Weighted { seed, weights } => [2, *seed].into_iter().chain(weights.numbers()).for_each(number),
    }
    let mut number = |number: u64| hash.update(&number.to_le_bytes());
    number(match remainder {
        Remainder::Keep => 0,
        Remainder::Drop => 1,
        Remainder::Pad => 2,
    });
    if let Some(Buckets { lengths, pool }) = buckets {
        number(*pool as u64);
        lengths.iter().for_each(|length| number(u64::from(*length)));
    }
    hash.digest()
}
