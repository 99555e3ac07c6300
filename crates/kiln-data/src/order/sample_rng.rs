//! The random generator of one sample in one epoch.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// The generator of all random choices about one sample in one epoch: a pure function of the three
/// numbers, so that an augmentation does not depend on workers, batches, or where a run resumed.
///
/// ChaCha8 gives the same values on every platform and in every version.
pub fn sample_rng(seed: u64, epoch: u64, id: u64) -> ChaCha8Rng {
    let mut key = [0u8; 32];
    for (slot, number) in key.chunks_exact_mut(8).zip([seed, epoch, id]) {
        slot.copy_from_slice(&number.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}
