use rand::Rng;
use serde::{Deserialize, Serialize};

use crate::rng::sample_rng;

/// In which order an epoch visits its samples: a pure function of (seed, epoch), computed one
/// position at a time, so that an epoch of any length is entered anywhere at no cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// 0, 1, 2, ...
    Sequential,
    /// A pseudo-random permutation, another one every epoch.
    Shuffled {
        /// What the permutations are derived from.
        seed: u64,
    },
}

impl Order {
    /// The permutation of `0..len` for `epoch`.
    pub fn permutation(self, len: usize, epoch: u64) -> Permutation {
        match self {
            Order::Sequential => Permutation { len, keys: None },
            Order::Shuffled { seed } => {
                let mut rng = sample_rng(seed, epoch, u64::MAX);
                Permutation { len, keys: Some(std::array::from_fn(|_| rng.next_u64())) }
            }
        }
    }
}

const ROUNDS: usize = 6;

/// One epoch's order; see [`Order::permutation`].
///
/// A Feistel network over the smallest even number of bits that holds every position, with values
/// outside of the range walked until they fall inside (Black and Rogaway 2002, "Ciphers with
/// arbitrary finite domains"): a bijection that needs no table.
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    len: usize,
    keys: Option<[u64; ROUNDS]>,
}

impl Permutation {
    /// The sample at `position` of the epoch.
    ///
    /// # Panics
    /// When `position` is not below the permutation's length.
    pub fn at(&self, position: usize) -> usize {
        assert!(position < self.len, "position {position}, expected below {}", self.len);
        let Some(keys) = &self.keys else { return position };
        let half = (usize::BITS - (self.len - 1).leading_zeros()).div_ceil(2).max(1);
        let mut value = position as u64;
        loop {
            value = keys.iter().fold(value, |value, key| feistel(value, *key, half));
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

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014).
fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn epoch(order: Order, len: usize, epoch: u64) -> Vec<usize> {
        let permutation = order.permutation(len, epoch);
        (0..len).map(|position| permutation.at(position)).collect()
    }

    proptest! {
        #[test]
        fn every_epoch_visits_every_sample_once(len in 1usize..3000, seed: u64, number: u64) {
            let mut visited = epoch(Order::Shuffled { seed }, len, number);
            visited.sort_unstable();
            prop_assert_eq!(visited, (0..len).collect::<Vec<_>>());
        }
    }

    #[test]
    fn orders_differ_between_epochs_and_seeds_and_repeat_for_the_same() {
        let order = Order::Shuffled { seed: 1 };
        assert_eq!(epoch(order, 1000, 3), epoch(order, 1000, 3));
        assert_ne!(epoch(order, 1000, 3), epoch(order, 1000, 4));
        assert_ne!(epoch(order, 1000, 3), epoch(Order::Shuffled { seed: 2 }, 1000, 3));
        assert_eq!(epoch(Order::Sequential, 5, 9), [0, 1, 2, 3, 4]);
    }

    /// Every sample lands at every position equally often, and neighbours are not kept together.
    #[test]
    fn positions_are_uniform() {
        let (len, epochs) = (40usize, 8000u64);
        let order = Order::Shuffled { seed: 7 };
        let mut counts = vec![vec![0f64; len]; len];
        let mut neighbours = 0f64;
        for number in 0..epochs {
            let visited = epoch(order, len, number);
            neighbours += visited.windows(2).filter(|pair| pair[1] == pair[0] + 1).count() as f64;
            visited.iter().enumerate().for_each(|(position, id)| counts[*id][position] += 1.0);
        }
        let expected = epochs as f64 / len as f64;
        let chi: f64 = counts.iter().flatten().map(|count| (count - expected).powi(2) / expected).sum();
        let freedom = ((len - 1) * (len - 1)) as f64;
        // Mean `freedom`, standard deviation sqrt(2 freedom): five deviations.
        assert!((chi - freedom).abs() < 5.0 * (2.0 * freedom).sqrt(), "chi square {chi}, expected about {freedom}");
        // A random order has (len - 1) pairs of which each is (i, i + 1) with probability 1 / len.
        let rate = neighbours / epochs as f64;
        assert!((rate - (len - 1) as f64 / len as f64).abs() < 0.05, "{rate} neighbours an epoch");
    }

    #[test]
    fn entering_a_huge_epoch_is_immediate() {
        let permutation = Order::Shuffled { seed: 3 }.permutation(1 << 50, 0);
        assert!(permutation.at((1 << 50) - 1) < 1 << 50);
    }
}
