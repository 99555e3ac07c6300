//! A histogram of a fixed number of bins that widens as values come.

/// The number of bins, as in torch's `HistogramObserver`.
const BINS: usize = 2048;

/// Counts of values in bins of one width. When a value lies outside, the width doubles as often as it takes: two neighbours become one
/// bin, so counts stay whole and memory stays bounded.
#[derive(Debug, Clone)]
pub(crate) struct Histogram {
    counts: Vec<u64>,
    low: f64,
    /// The width of a bin; 0 as long as all values are the same.
    pub(super) width: f64,
    pub(super) least: f32,
    pub(super) most: f32,
    /// Number of values.
    pub(super) total: u64,
    /// Number of values that are exactly 0.
    pub(super) zeros: u64,
}

impl Histogram {
    pub(crate) fn new() -> Self {
        Self {
            counts: vec![0; BINS],
            low: 0.0,
            width: 0.0,
            least: f32::INFINITY,
            most: f32::NEG_INFINITY,
            total: 0,
            zeros: 0,
        }
    }

    /// Counts `values`, which are finite.
    pub(crate) fn observe(&mut self, values: &[f32]) {
        let Some(first) = values.first() else { return };
        if self.total == 0 {
            self.low = f64::from(*first);
        }
        for value in values {
            self.least = self.least.min(*value);
            self.most = self.most.max(*value);
        }
        self.widen();
        for value in values {
            let bin = self.bin(f64::from(*value));
            self.counts[bin] += 1;
            self.zeros += u64::from(*value == 0.0);
        }
        self.total += values.len() as u64;
    }

    /// The bins that are not empty: where each begins, and its count.
    pub(crate) fn bins(&self) -> impl DoubleEndedIterator<Item = (f64, u64)> {
        let filled = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        filled.map(|(bin, count)| (self.low + bin as f64 * self.width, *count))
    }

    /// The number that a share of the values lies below, as if the values of a bin were spread over it evenly.
    pub(crate) fn quantile(&self, share: f64) -> f32 {
        let wanted = share * self.total as f64;
        let mut below = 0.0;
        for (begin, count) in self.bins() {
            let count = count as f64;
            if below + count >= wanted {
                let number = begin + self.width * ((wanted - below) / count).max(0.0);
                return (number as f32).clamp(self.least, self.most);
            }
            below += count;
        }
        self.most
    }

    fn bin(&self, value: f64) -> usize {
        if self.width == 0.0 { 0 } else { (((value - self.low) / self.width) as usize).min(BINS - 1) }
    }

    /// Makes the bins cover the least and the largest value.
    fn widen(&mut self) {
        let (least, most) = (f64::from(self.least), f64::from(self.most));
        if self.width == 0.0 {
            if most > least {
                // All values so far were the same.
                let (same, count) = (self.low, std::mem::take(&mut self.counts[0]));
                self.low = least;
                self.width = (most - least) / BINS as f64;
                let bin = self.bin(same);
                self.counts[bin] = count;
            }
            return;
        }
        while least < self.low {
            // The old bins become the upper half.
            self.low -= BINS as f64 * self.width;
            self.merge(BINS / 2);
        }
        while most > self.low + BINS as f64 * self.width {
            self.merge(0);
        }
    }

    /// Doubles the width of the bins; what was counted begins at the bin `to`.
    fn merge(&mut self, to: usize) {
        let mut merged = vec![0; BINS];
        for (bin, pair) in self.counts.chunks(2).enumerate() {
            merged[to + bin] = pair.iter().sum();
        }
        self.counts = merged;
        self.width *= 2.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn count_below(histogram: &Histogram, number: f64) -> u64 {
        histogram.bins().filter(|(begin, _)| *begin < number).map(|(_, count)| count).sum()
    }

    #[test]
    fn values_that_are_all_the_same_take_one_bin() {
        let mut histogram = Histogram::new();
        histogram.observe(&[3.0; 5]);
        assert_eq!(histogram.bins().collect::<Vec<_>>(), [(3.0, 5)]);
        assert_eq!(histogram.quantile(0.5), 3.0);
        histogram.observe(&[3.0, 1.0]);
        assert_eq!(histogram.bins().map(|(_, count)| count).collect::<Vec<_>>(), [1, 6]);
    }

    #[test]
    fn zeros_are_counted_apart() {
        let mut histogram = Histogram::new();
        histogram.observe(&[0.0, -0.0, 1.0, 2.0]);
        assert_eq!((histogram.zeros, histogram.total), (2, 4));
    }

    proptest! {
        #[test]
        fn counts_are_those_of_the_values_within_a_bin(batches in prop::collection::vec(prop::collection::vec(-1e4_f32..1e4, 1..50), 1..8)) {
            let mut histogram = Histogram::new();
            for (index, batch) in batches.iter().enumerate() {
                let scaled: Vec<f32> = batch.iter().map(|value| value * 10_f32.powi(index as i32 - 3)).collect();
                histogram.observe(&scaled);
            }
            let all = batches.iter().enumerate().flat_map(|(index, batch)| batch.iter().map(move |value| value * 10_f32.powi(index as i32 - 3)));
            let all: Vec<f64> = all.map(f64::from).collect();
            prop_assert_eq!(histogram.total, all.len() as u64);
            prop_assert_eq!(histogram.bins().map(|(_, count)| count).sum::<u64>(), all.len() as u64);
            for number in &all {
                // Rounding may move a value that lies on a border by one bin.
                let room = 2.0 * histogram.width;
                let exact = |number: f64| all.iter().filter(|value| **value < number).count() as u64;
                prop_assert!(count_below(&histogram, number - room) <= exact(*number));
                prop_assert!(count_below(&histogram, number + room) >= exact(*number));
            }
            // The width is at most twice what the range needs, after widening on both sides at most four times.
            let span = f64::from(histogram.most) - f64::from(histogram.least);
            prop_assert!(histogram.width * BINS as f64 <= 4.0 * span * 1.001);
        }
    }
}
