use std::sync::Arc;

use rand::Rng;

use crate::order::EpochOrder;
use crate::rng::sample_rng;

/// Where the numbers of pools begin as what is drawn for, downwards: below those of orders and far above those of samples.
const POOLS: u64 = u64::MAX / 2;

/// Batches of samples of similar length; see [`Sampler::bucketed`](crate::Sampler::bucketed).
#[derive(Clone, Debug)]
pub(crate) struct Buckets {
    /// One a sample.
    pub(crate) lengths: Arc<[u32]>,
    /// Batches whose samples are sorted together.
    pub(crate) pool: usize,
}

/// What a batch is a function of, besides the lengths.
pub(crate) struct Epoch<'a> {
    pub(crate) order: &'a EpochOrder,
    /// Of the random order of a pool's batches; none: the shortest first.
    pub(crate) seed: Option<u64>,
    pub(crate) number: u64,
    /// Batches that are not short.
    pub(crate) full: usize,
    pub(crate) batch_size: usize,
}

impl Buckets {
    /// The samples of batch `index`, the shortest first.
    pub(crate) fn batch(&self, epoch: &Epoch<'_>, index: usize) -> Vec<usize> {
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
        // Positions make all keys differ: samples of one length keep the epoch's order, and the cuts are clear.
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

/// `0..len` in random order, all orders equally often; [`Order::Shuffled`](crate::Order::Shuffled) is not that fair to few.
fn shuffled(len: usize, mut rng: impl Rng) -> Vec<usize> {
    let mut keys: Vec<(u64, usize)> = (0..len).map(|slot| (rng.next_u64(), slot)).collect();
    keys.sort_unstable();
    keys.into_iter().map(|(_, slot)| slot).collect()
}
