use serde::{Deserialize, Serialize};

/// What a micro-batch takes, as a line through what was measured: `fixed + per_sample * size` bytes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Bytes that no micro-batch changes: parameters, gradients, optimizer state.
    pub fixed: f64,
    /// Bytes of one more sample, above 0.
    pub per_sample: f64,
}

impl Line {
    /// The line of least squares through `(size, peak bytes)`. One size alone gives the line through the origin, which
    /// says too little of larger sizes, never too much. `None` without samples, or when larger sizes took no more.
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

    /// The largest size that takes at most `limit` bytes, 0 when none does.
    pub fn largest(&self, limit: u64) -> usize {
        // What rounding took away must not cost a sample.
        ((limit as f64 - self.fixed) / self.per_sample * (1.0 + 1e-9)).max(0.0) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nothing_and_what_does_not_grow_give_no_line() {
        assert_eq!(Line::through(&[]), None);
        assert_eq!(Line::through(&[(4, 0)]), None);
        assert_eq!(Line::through(&[(4, 100), (8, 100)]), None);
        assert_eq!(Line::through(&[(4, 100), (8, 90)]), None);
    }

    #[test]
    fn one_size_says_too_little_of_larger_ones() {
        let line = Line::through(&[(10, 1500), (10, 1500)]).unwrap();
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
            let line = Line::through(&[(size, peak(size)), (size + more, peak(size + more))]).unwrap();
            let found = line.largest(peak(largest) + per_sample / 2);
            // Half a sample of room is far more than rounding takes, unless what is fixed dwarfs a sample.
            if (fixed as f64) < per_sample as f64 * 1e9 && per_sample > 1 {
                prop_assert_eq!(found, largest);
            }
        }
    }
}
