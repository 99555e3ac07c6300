//! The order in which an epoch visits its samples.

use serde::{Deserialize, Serialize};

use super::random::{Draws, Permutation, sample_rng};
use super::weights::Weights;

/// The order in which an epoch visits its samples: a pure function of (seed, epoch). Each position is computed by itself,
/// so that an epoch of any length can be entered at any position at no cost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// 0, 1, 2, ...
    Sequential,
    /// A pseudo-random permutation, a new one in every epoch.
    Shuffled {
        /// The seed of the permutations.
        seed: u64,
    },
    /// Independent draws with replacement, as many as there are samples, each sample with a probability proportional
    /// to its weight; as torch's `WeightedRandomSampler`. It cannot be written to a settings file.
    ///
    /// There is no weighted order *without* replacement: each draw depends on all draws before it, so that a position
    /// cannot be computed by itself.
    #[serde(skip)]
    Weighted {
        /// The seed of the draws.
        seed: u64,
        /// One weight a sample.
        weights: Weights,
    },
}

impl Order {
    /// The order of `samples` samples in `epoch`. [`Weighted`](Self::Weighted) has as many as it has weights and ignores
    /// `samples`; a [`Sampler`](crate::Sampler) checks that the two are equal.
    pub fn of_epoch(&self, samples: usize, epoch: u64) -> EpochOrder {
        let kind = match self {
            Order::Sequential => Kind::Sequential,
            Order::Shuffled { seed } => {
                Kind::Permutation(Permutation::new(samples, sample_rng(*seed, epoch, u64::MAX)))
            }
            Order::Weighted { seed, weights } => {
                Kind::Draws { weights: weights.clone(), draws: Draws::new(sample_rng(*seed, epoch, u64::MAX - 2)) }
            }
        };
        let len = if let Order::Weighted { weights, .. } = self { weights.len() } else { samples };
        EpochOrder { len, kind }
    }

    /// The seed of the random choices about an epoch, if there are any.
    pub(crate) fn seed(&self) -> Option<u64> {
        match self {
            Order::Sequential => None,
            Order::Shuffled { seed } | Order::Weighted { seed, .. } => Some(*seed),
        }
    }
}

/// The order of one epoch; see [`Order::of_epoch`].
#[derive(Clone, Debug)]
pub struct EpochOrder {
    len: usize,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Sequential,
    Permutation(Permutation),
    Draws { weights: Weights, draws: Draws },
}

impl EpochOrder {
    /// The sample at `position` of the epoch.
    ///
    /// # Panics
    /// When `position` is not below the number of samples.
    pub fn at(&self, position: usize) -> usize {
        assert!(position < self.len, "position {position}, expected below {}", self.len);
        match &self.kind {
            Kind::Sequential => position,
            Kind::Permutation(permutation) => permutation.at(position),
            Kind::Draws { weights, draws } => {
                weights.sample(draws.at(2 * position as u64), draws.at(2 * position as u64 + 1))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn epoch(order: &Order, len: usize, epoch: u64) -> Vec<usize> {
        let visits = order.of_epoch(len, epoch);
        (0..len).map(|position| visits.at(position)).collect()
    }

    proptest! {
        #[test]
        fn every_epoch_visits_every_sample_once(len in 1usize..3000, seed: u64, number: u64) {
            let mut visited = epoch(&Order::Shuffled { seed }, len, number);
            visited.sort_unstable();
            prop_assert_eq!(visited, (0..len).collect::<Vec<_>>());
        }
    }

    #[test]
    fn orders_differ_between_epochs_and_seeds_and_repeat_for_the_same() {
        let weights = Weights::balanced(&(0..1000).map(|id| id % 3).collect::<Vec<_>>()).unwrap();
        let weighted = |seed| Order::Weighted { seed, weights: weights.clone() };
        let shuffled = |seed| Order::Shuffled { seed };
        for [one, two] in [[shuffled(1), shuffled(2)], [weighted(1), weighted(2)]] {
            assert_eq!(epoch(&one, 1000, 3), epoch(&one, 1000, 3));
            assert_ne!(epoch(&one, 1000, 3), epoch(&one, 1000, 4));
            assert_ne!(epoch(&one, 1000, 3), epoch(&two, 1000, 3));
        }
        assert_eq!(epoch(&Order::Sequential, 5, 9), [0, 1, 2, 3, 4]);
    }

    /// Every sample lands at every position equally often, and neighbours are not kept together.
    #[test]
    fn positions_are_uniform() {
        let (len, epochs) = (40usize, 8000u64);
        let order = Order::Shuffled { seed: 7 };
        let mut counts = vec![vec![0f64; len]; len];
        let mut neighbours = 0f64;
        for number in 0..epochs {
            let visited = epoch(&order, len, number);
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

    /// Draws have the weights' frequencies, in every epoch and at every position, and do not depend on the one before.
    #[test]
    fn weighted_draws_are_independent_and_as_frequent_as_their_weights() {
        let weights = [0.0, 1.0, 2.0, 3.0, 0.5, 13.5, 20.0, 0.25];
        let (len, sum, epochs) = (weights.len(), weights.iter().sum::<f64>(), 40_000u64);
        let order = Order::Weighted { seed: 9, weights: Weights::new(&weights).unwrap() };
        let (mut placed, mut pairs) = (vec![vec![0f64; len]; len], vec![vec![0f64; len]; len]);
        for number in 0..epochs {
            let visited = epoch(&order, len, number);
            visited.iter().enumerate().for_each(|(position, id)| placed[position][*id] += 1.0);
            visited.windows(2).for_each(|pair| pairs[pair[0]][pair[1]] += 1.0);
        }
        assert!(placed.iter().all(|counts| counts[0] == 0.0), "a weight of 0 was drawn");
        let check = |counts: &[Vec<f64>], expected: &dyn Fn(usize, usize) -> f64, freedom: f64| {
            let cells = (0..len).flat_map(|i| (1..len).map(move |j| (i, j))).filter(|(i, j)| expected(*i, *j) > 0.0);
            let chi: f64 = cells.map(|(i, j)| (counts[i][j] - expected(i, j)).powi(2) / expected(i, j)).sum();
            assert!((chi - freedom).abs() < 5.0 * (2.0 * freedom).sqrt(), "chi square {chi}, expected about {freedom}");
        };
        let kinds = (len - 1) as f64; // that are drawn at all
        check(&placed, &|_, id| epochs as f64 * weights[id] / sum, len as f64 * (kinds - 1.0));
        let of_pairs = epochs as f64 * (len - 1) as f64;
        check(&pairs, &|a, b| of_pairs * weights[a] * weights[b] / (sum * sum), kinds * kinds - 1.0);
    }

    #[test]
    fn entering_a_huge_epoch_is_immediate() {
        let order = Order::Shuffled { seed: 3 }.of_epoch(1 << 50, 0);
        assert!(order.at((1 << 50) - 1) < 1 << 50);
    }

    #[test]
    fn settings_name_an_order_but_hold_no_weights() {
        let json = |order: &Order| serde_json::to_string(order);
        assert_eq!(json(&Order::Shuffled { seed: 5 }).unwrap(), r#"{"shuffled":{"seed":5}}"#);
        assert_eq!(serde_json::from_str::<Order>(r#""sequential""#).unwrap(), Order::Sequential);
        assert!(json(&Order::Weighted { seed: 5, weights: Weights::new(&[1.0]).unwrap() }).is_err());
    }
}
