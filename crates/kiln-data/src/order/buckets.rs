//! Batches of samples of similar length.

use std::sync::Arc;

use rand::Rng;

use super::epoch_order::EpochOrder;
use super::random::sample_rng;

/// The id of the first pool in [`sample_rng`]; later pools have lower ids. Orders have higher ids, samples much lower ones.
const POOLS: u64 = u64::MAX / 2;

/// Batches of samples of similar length; see [`Sampler::bucketed`](crate::Sampler::bucketed).
#[derive(Clone, Debug)]
pub(super) struct Buckets {
    /// One for each sample.
    pub(super) lengths: Arc<[u32]>,
    /// Batches whose samples are sorted together.
    pub(super) pool: usize,
}

/// The inputs of a batch besides the lengths.
pub(super) struct Epoch<'a> {
    pub(super) order: &'a EpochOrder,
    /// The seed of the random order of a pool's batches; without one, the shortest batch is first.
    pub(super) seed: Option<u64>,
    pub(super) number: u64,
    /// Number of full batches.
    pub(super) full: usize,
    pub(super) batch_size: usize,
}

impl Buckets {
    /// The samples of batch `index`, the shortest first.
    pub(super) fn batch(&self, epoch: &Epoch<'_>, index: usize) -> Vec<usize> {
        let pool = index / self.pool;
        let first = pool * self.pool;
        let batches = self.pool.min(epoch.full - first);
        let slot = match epoch.seed {
            Some(seed) => shuffled(batches, sample_rng(seed, epoch.number, POOLS - pool as u64))[index - first],
            None => index - first,
        };
        let size = epoch.batch_size;
        let sample = |position: usize| {
            let id = epoch.order.at(position);
            (self.lengths[id], position, id)
        };
        // The position makes every key unique: samples of equal length keep the epoch's order.
        let mut samples: Vec<_> = (first * size..(first + batches) * size).map(sample).collect();
        let mut rest = &mut samples[..];
        if slot > 0 {
            rest = rest.select_nth_unstable(slot * size - 1).2;
        }
        if rest.len() > size {
            rest = rest.select_nth_unstable(size).0;
        }
        rest.sort_unstable();
        rest.iter().map(|(_, _, id)| *id).collect()
    }
}

/// `0..len` in random order, all orders equally often, which [`Order::Shuffled`](crate::Order::Shuffled) does not guarantee
/// for few elements.
fn shuffled(len: usize, mut rng: impl Rng) -> Vec<usize> {
    let mut keys: Vec<(u64, usize)> = (0..len).map(|slot| (rng.next_u64(), slot)).collect();
    keys.sort_unstable();
    keys.into_iter().map(|(_, slot)| slot).collect()
}
