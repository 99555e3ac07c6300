//! Memory as a linear function of the micro-batch size.

use serde::{Deserialize, Serialize};

/// The memory of a micro-batch, fitted to measured peaks: `fixed + per_sample * size` bytes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LinearFit {
    /// Bytes that do not depend on the micro-batch: parameters, gradients, optimizer state.
    pub fixed: f64,
    /// Bytes of one more sample, greater than 0.
    pub per_sample: f64,
}

impl LinearFit {
    /// The least-squares line through points `(size, peak bytes)`. A single size gives the line through the origin, which never
    /// predicts a size that is too large. `None` without points, or when larger sizes did not use more memory.
    pub fn through(samples: &[(usize, u64)]) -> Option<Self> {
        let count = samples.len() as f64;
        let mean = |value: fn(&(usize, u64)) -> f64| samples.iter().map(value).sum::<f64>() / count;
        let (size, peak) = (mean(|sample| sample.0 as f64), mean(|sample| sample.1 as f64));
        let spread: f64 = samples.iter().map(|sample| (sample.0 as f64 - size).powi(2)).sum();
        let (fixed, per_sample) = if spread > 0.0 {
            let slope = samples.iter().map(|s| (s.0 as f64 - size) * (s.1 as f64 - peak)).sum::<f64>() / spread;
            (peak - slope * size, slope)
        } else {
            (0.0, peak / size)
        };
        (per_sample.is_finite() && per_sample > 0.0).then_some(Self { fixed, per_sample })
    }

    /// The largest size that uses at most `limit` bytes, 0 if none does.
    pub fn largest(&self, limit: u64) -> usize {
        // A rounding error must not cost a sample.
        ((limit as f64 - self.fixed) / self.per_sample * (1.0 + 1e-9)).max(0.0) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn no_points_and_constant_peaks_give_no_fit() {
        assert_eq!(LinearFit::through(&[]), None);
        assert_eq!(LinearFit::through(&[(4, 0)]), None);
        assert_eq!(LinearFit::through(&[(4, 100), (8, 100)]), None);
        assert_eq!(LinearFit::through(&[(4, 100), (8, 90)]), None);
    }

    #[test]
    fn a_single_size_underestimates_the_largest() {
        let line = LinearFit::through(&[(10, 1500), (10, 1500)]).unwrap();
        // In truth 500 + 100 n: 25 would fit into 3000.
        assert_eq!(line.largest(3000), 20);
        assert_eq!(line.largest(0), 0);
    }

    proptest! {
        #[test]
        fn points_on_a_line_give_its_largest_size_back(
            fixed in 0_u64..1 << 36, per_sample in 1_u64..1 << 28, size in 1_usize..500, more in 1_usize..500,
            largest in 1_usize..2000,
        ) {
            let peak = |size: usize| fixed + per_sample * size as u64;
            let line = LinearFit::through(&[(size, peak(size)), (size + more, peak(size + more))]).unwrap();
            let found = line.largest(peak(largest) + per_sample / 2);
            // Half a sample of room is far more than rounding takes, unless what is fixed dwarfs a sample.
            if (fixed as f64) < per_sample as f64 * 1e9 && per_sample > 1 {
                prop_assert_eq!(found, largest);
            }
        }
    }
}
