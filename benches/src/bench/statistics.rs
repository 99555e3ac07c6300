//! Medians and quartiles, and ratios of turns of one round.

use serde::{Deserialize, Serialize};

/// A median with its quartiles.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spread {
    /// First quartile.
    pub(crate) low: f64,
    pub(crate) median: f64,
    /// Third quartile.
    pub(crate) high: f64,
}

impl Spread {
    /// The spread of `values`; `None` without values. Quartiles are interpolated between the two nearest values (type 7 of Hyndman and
    /// Fan 1996).
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let last = values.len().checked_sub(1)?;
        let at = |part: f64| {
            let place = part * last as f64;
            let (below, above) = (values[place.floor() as usize], values[place.ceil() as usize]);
            below + (above - below) * place.fract()
        };
        Some(Self { low: at(0.25), median: at(0.5), high: at(0.75) })
    }

    /// A value without any spread.
    pub(crate) fn exactly(value: f64) -> Self {
        Self { low: value, median: value, high: value }
    }

    /// Whether the middle halves of both overlap.
    pub(crate) fn overlaps(self, other: Self) -> bool {
        self.low <= other.high && other.low <= self.high
    }
}

/// Ratios of turns to the reference's turn in the same round. A round is left out if either turn does not count.
pub(crate) fn ratios(turns: &[Option<f64>], reference: &[Option<f64>]) -> Vec<f64> {
    let pairs = turns.iter().zip(reference);
    pairs.filter_map(|(turn, reference)| Some((*turn)? / reference.filter(|seconds| *seconds > 0.0)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_lie_between_the_nearest_values() {
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([7.0]), Some(Spread::exactly(7.0)));
        assert_eq!(Spread::of([3.0, 1.0]), Some(Spread { low: 1.5, median: 2.0, high: 2.5 }));
        assert_eq!(Spread::of([5.0, 1.0, 4.0, 2.0, 3.0]), Some(Spread { low: 2.0, median: 3.0, high: 4.0 }));
    }

    #[test]
    fn one_slow_round_does_not_move_the_median_of_ratios() {
        // In the third round the machine was busy: both took ten times as long.
        let (turns, reference) = ([2.0, 2.2, 20.0, 2.1], [1.0, 1.1, 10.0, 1.0]);
        let found = Spread::of(ratios(&turns.map(Some), &reference.map(Some))).unwrap();
        assert!((found.median - 2.0).abs() < 1e-12, "{found:?}");
    }

    #[test]
    fn a_round_in_which_one_does_not_count_is_left_out() {
        assert_eq!(ratios(&[Some(2.0), None, Some(9.0), Some(4.0)], &[Some(1.0), Some(1.0), None, Some(0.0)]), [2.0]);
    }

    #[test]
    fn spreads_overlap_when_they_touch() {
        let spread = |low, high| Spread { low, median: (low + high) / 2.0, high };
        assert!(spread(1.0, 2.0).overlaps(spread(2.0, 3.0)) && spread(2.0, 3.0).overlaps(spread(1.0, 2.0)));
        assert!(spread(1.0, 4.0).overlaps(spread(2.0, 3.0)));
        assert!(!spread(1.0, 2.0).overlaps(spread(2.1, 3.0)) && !spread(2.1, 3.0).overlaps(spread(1.0, 2.0)));
    }
}
