//! A pseudo-random permutation that needs no table.

use rand::Rng;

use super::splitmix::mix;

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
