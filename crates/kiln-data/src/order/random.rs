//! Random numbers as functions of numbers: the generators of a sample and of a batch, draws by position, permutations.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_xoshiro::SplitMix64;

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

/// The distance between two states of SplitMix64.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Uniform 64-bit numbers, each found by its position.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draws {
    start: u64,
}

impl Draws {
    pub(super) fn new(mut rng: impl Rng) -> Self {
        Self { start: rng.next_u64() }
    }

    pub(super) fn at(self, position: u64) -> u64 {
        // The generator adds one step before it mixes.
        SplitMix64::seed_from_u64(self.start.wrapping_add(position.wrapping_mul(STEP))).next_u64()
    }
}

/// The finaliser of SplitMix64: mixes the bits of `z`.
pub(super) fn mix(z: u64) -> u64 {
    SplitMix64::seed_from_u64(z.wrapping_sub(STEP)).next_u64()
}

const ROUNDS: usize = 6;

/// A pseudo-random permutation of `0..len`: a Feistel network over the smallest even number of bits that holds every
/// position. A value outside of the range is permuted again until it falls inside (cycle walking: Black and Rogaway 2002,
/// "Ciphers with arbitrary finite domains"). The result is a bijection that needs no table.
///
/// Every element lands at every position equally often. Of five or six elements, however, some orders are more frequent
/// than others: Feistel networks on so few bits do not reach all orders equally often, whatever the number of rounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Permutation {
    len: usize,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// A permutation of `0..len` that depends on `rng`.
    pub(crate) fn new(len: usize, mut rng: impl Rng) -> Self {
        Self { len, keys: std::array::from_fn(|_| rng.next_u64()) }
    }

    /// The element at `position`, which is below the permutation's length.
    pub(crate) fn at(&self, position: usize) -> usize {
        let half = (usize::BITS - (self.len - 1).leading_zeros()).div_ceil(2).max(1);
        let mut value = position as u64;
        loop {
            value = self.keys.iter().fold(value, |value, key| feistel(value, *key, half));
            if value < self.len as u64 {
                return value as usize;
            }
        }
    }
}

/// One round on `2 * half` bits: (left, right) to (right, left ^ f(right)).
fn feistel(value: u64, key: u64, half: u32) -> u64 {
    let mask = (1u64 << half) - 1;
    let (left, right) = (value >> half, value & mask);
    right << half | (left ^ mix(right ^ key)) & mask
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded from the reference implementation. Orders of saved runs depend on every bit.
    #[test]
    fn the_numbers_are_those_that_were_recorded() {
        let draws = Draws { start: 0 };
        assert_eq!(
            [0, 1, 2].map(|position| draws.at(position)),
            [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f,]
        );
        assert_eq!(
            [0, 1, u64::MAX, 0x0123_4567_89ab_cdef].map(mix),
            [0x0000_0000_0000_0000, 0x5692_161d_100b_05e5, 0xb4d0_55fc_f2cb_bd7b, 0xb2c0_58e4_ebb5_112c]
        );
        assert_eq!(Draws { start: u64::MAX - 4 }.at(u64::MAX), 0x47f5_41c0_f2a7_a74e);
    }
}
