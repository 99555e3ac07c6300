//! The random generators of one sample, and of one batch, in one epoch.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// The generator of all random choices about one sample in one epoch: a pure function of the three
/// numbers, so that an augmentation does not depend on workers, batches, or where a run resumed.
///
/// ChaCha8 gives the same values on every platform and in every version.
pub fn sample_rng(seed: u64, epoch: u64, id: u64) -> ChaCha8Rng {
    keyed([seed, epoch, id, 0])
}

/// The generator of all random choices about batch `index` of an epoch as a whole.
pub(crate) fn batch_rng(seed: u64, epoch: u64, index: u64) -> ChaCha8Rng {
    keyed([seed, epoch, index, 1])
}

fn keyed(numbers: [u64; 4]) -> ChaCha8Rng {
    let mut key = [0u8; 32];
    for (slot, number) in key.chunks_exact_mut(8).zip(numbers) {
        slot.copy_from_slice(&number.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}
