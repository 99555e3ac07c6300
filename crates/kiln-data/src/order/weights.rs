//! A table from which weighted samples are drawn in constant time.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use crate::error::Error;

/// How often each sample is drawn, relative to the others, in [`Order::Weighted`](crate::Order::Weighted).
///
/// A table of 12 bytes a sample from which a draw takes constant time: the alias method of Walker 1977, built as in
/// Vose 1991. Clones share it.
#[derive(Clone, PartialEq, Eq)]
pub struct Weights {
    slots: Arc<[Slot]>,
}

/// One of as many equally likely slots as there are samples.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C, packed(4))]
struct Slot {
    /// The probability that the slot selects the sample of its own number, in units of 2^-64.
    own: u64,
    /// The sample that it selects otherwise.
    alias: u32,
}

impl Weights {
    /// One weight for each sample; their sum need not be 1. A sample of weight 0 is never drawn.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for a weight that is negative or not finite, weights whose sum is 0 or not finite, and
    /// 2^32 samples or more.
    pub fn new(weights: &[f64]) -> Result<Self, Error> {
        let refused = |value: String, expected| Err(Error::InvalidSetting { name: "weights", value, expected });
        if let Some(id) = weights.iter().position(|weight| !(weight.is_finite() && *weight >= 0.0)) {
            return refused(format!("{} for sample {id}", weights[id]), "finite numbers of at least 0");
        }
        let sum = weights.iter().fold(0.0, |sum, weight| sum + weight);
        if !(sum > 0.0 && sum.is_finite()) {
            return refused(format!("{sum} in all"), "a sum above 0 that is finite");
        }
        if u32::try_from(weights.len()).is_err() {
            return refused(format!("{} samples", weights.len()), "fewer than 2^32");
        }
        Ok(Self { slots: slots(weights, sum).into() })
    }

    /// Draws every class equally often: the weight of a sample is one over the number of samples with its label.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for no labels, and for 2^32 or more.
    pub fn balanced(labels: &[usize]) -> Result<Self, Error> {
        let mut counts: HashMap<usize, f64> = HashMap::new();
        labels.iter().for_each(|label| *counts.entry(*label).or_default() += 1.0);
        Self::new(&labels.iter().map(|label| 1.0 / counts[label]).collect::<Vec<_>>())
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Always false: [`new`](Self::new) refuses an empty list.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The sample that two uniform 64-bit numbers select.
    pub(super) fn sample(&self, which: u64, own: u64) -> usize {
        let slot = ((u128::from(which) * self.slots.len() as u128) >> 64) as usize;
        let Slot { own: threshold, alias } = self.slots[slot];
        if own < threshold { slot } else { alias as usize }
    }

    /// The table as numbers, for a fingerprint.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> + '_ {
        self.slots.iter().flat_map(|slot| [slot.own, u64::from(slot.alias)])
    }
}

impl fmt::Debug for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Weights of {} samples", self.len())
    }
}

/// Vose's construction: a slot with less than its share is filled from a sample with more.
fn slots(weights: &[f64], sum: f64) -> Vec<Slot> {
    // The share of a slot is 1.
    let mut mass: Vec<f64> = weights.iter().map(|weight| weight / sum * weights.len() as f64).collect();
    // A slot that rounding leaves unfilled selects its own sample.
    let mut slots: Vec<Slot> = (0..weights.len()).map(|id| Slot { own: u64::MAX, alias: id as u32 }).collect();
    let (mut less, mut more): (Vec<usize>, Vec<usize>) = (0..weights.len()).partition(|id| mass[*id] < 1.0);
    while let (Some(id), Some(giver)) = (less.pop(), more.last().copied()) {
        slots[id] = Slot { own: (mass[id] * 2f64.powi(64)) as u64, alias: giver as u32 };
        mass[giver] -= 1.0 - mass[id];
        if mass[giver] < 1.0 {
            more.pop();
            less.push(giver);
        }
    }
    slots
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The probability of every sample that the table stands for.
    fn probabilities(weights: &Weights) -> Vec<f64> {
        let mut shares = vec![0.0; weights.len()];
        for (id, slot) in weights.slots.iter().enumerate() {
            let own = slot.own as f64 / 2f64.powi(64);
            shares[id] += own / weights.len() as f64;
            shares[slot.alias as usize] += (1.0 - own) / weights.len() as f64;
        }
        shares
    }

    proptest! {
        #[test]
        fn the_table_holds_the_weights(
            weights in prop::collection::vec(prop_oneof![Just(0.0), 0.0..1.0, 0.0..1e-9, 1e9..1e12], 1..400),
        ) {
            let sum: f64 = weights.iter().sum();
            prop_assume!(sum > 0.0);
            let table = Weights::new(&weights).unwrap();
            for (weight, share) in weights.iter().zip(probabilities(&table)) {
                prop_assert!((weight / sum - share).abs() < 1e-12, "{} became {share}", weight / sum);
                prop_assert!(*weight > 0.0 || share == 0.0, "a weight of 0 became {share}");
            }
        }
    }

    #[test]
    fn a_weight_of_0_stays_0_whatever_is_drawn() {
        let weights: Vec<f64> = (0..1001).map(|id| f64::from(id % 7 == 3) * 0.1).collect();
        let table = Weights::new(&weights).unwrap();
        let drawn =
            (0..=u64::MAX).step_by(1 << 52).flat_map(|which| [0, 1, u64::MAX / 3, u64::MAX].map(|own| (which, own)));
        assert!(drawn.into_iter().all(|(which, own)| table.sample(which, own) % 7 == 3));
    }

    #[test]
    fn balanced_classes_have_equal_shares() {
        let labels: Vec<usize> = (0..100).map(|id| if id < 90 { 0 } else { 7 + id % 2 }).collect();
        let shares = probabilities(&Weights::balanced(&labels).unwrap());
        for (class, members) in [(0, 90.0), (7, 5.0), (8, 5.0)] {
            let of_class: Vec<f64> = (0..100).filter(|id| labels[*id] == class).map(|id| shares[id]).collect();
            assert!((of_class.iter().sum::<f64>() - 1.0 / 3.0).abs() < 1e-12, "class {class}");
            assert!(of_class.iter().all(|share| (share - 1.0 / 3.0 / members).abs() < 1e-12));
        }
    }

    #[test]
    fn impossible_weights_are_refused() {
        let cases: [(&[f64], &str); 6] = [
            (&[], "weights is 0 in all, expected a sum above 0 that is finite"),
            (&[0.0, 0.0], "weights is 0 in all, expected a sum above 0 that is finite"),
            (&[1.0, -0.5], "weights is -0.5 for sample 1, expected finite numbers of at least 0"),
            (&[f64::NAN], "weights is NaN for sample 0, expected finite numbers of at least 0"),
            (&[1.0, 2.0, f64::INFINITY], "weights is inf for sample 2, expected finite numbers of at least 0"),
            (&[f64::MAX, f64::MAX], "weights is inf in all, expected a sum above 0 that is finite"),
        ];
        for (weights, message) in cases {
            assert_eq!(Weights::new(weights).unwrap_err().to_string(), message);
        }
        assert!(Weights::balanced(&[]).is_err());
    }
}
