//! The range of activations, calibrated on batches.

use super::histogram::Histogram;
use super::weights::check_finite;
use crate::Error;
use serde::{Deserialize, Serialize};

/// The method that chooses a range from the values of calibration batches.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RangeMethod {
    /// From the least to the largest value, as torch's `MinMaxObserver`.
    #[default]
    MinMax,
    /// So that this percentage of the values, above 50 and at most 100, lies below the upper end, and as many above the lower end.
    Percentile(f64),
    /// The range of the least squared error with 8 bits, by a histogram, as torch's `HistogramObserver` in spirit.
    Mse,
}

/// Collects the values of calibration batches in bounded memory, and chooses their range.
///
/// ```
/// use kiln_compression::{Calibrator, RangeMethod};
///
/// let mut calibrator = Calibrator::new(RangeMethod::MinMax)?;
/// calibrator.observe(&[0.5, 2.0])?;
/// calibrator.observe(&[-1.0, 4.1])?;
/// let range = calibrator.range()?;
/// assert_eq!((range.low, range.high), (-1.0, 4.1));
/// assert_eq!(range.affine().zero_point, 50);
/// # Ok::<(), kiln_compression::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Calibrator {
    method: RangeMethod,
    histogram: Histogram,
}

impl Calibrator {
    /// A calibrator that has seen nothing.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidSetting`] if a percentile is not above 50 and at most 100.
    pub fn new(method: RangeMethod) -> Result<Self, Error> {
        match method {
            RangeMethod::Percentile(percent) if !(percent > 50.0 && percent <= 100.0) => {
                Err(Error::invalid("the percentile of a range", percent, "above 50 and at most 100"))
            }
            _ => Ok(Self { method, histogram: Histogram::new() }),
        }
    }

    /// Takes the values of one batch.
    ///
    /// # Errors
    ///
    /// [`Error::NotFinite`] if a value is infinite or not a number. Nothing of the batch is taken then.
    pub fn observe(&mut self, values: &[f32]) -> Result<(), Error> {
        check_finite("an activation", values)?;
        self.histogram.observe(values);
        Ok(())
    }

    /// The range of the values so far.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidSetting`] if no value was taken.
    pub fn range(&self) -> Result<Range, Error> {
        let histogram = &self.histogram;
        if histogram.total == 0 {
            return Err(Error::invalid("the number of calibration values", 0, "at least 1"));
        }
        let (low, high) = (histogram.least, histogram.most);
        Ok(match self.method {
            RangeMethod::MinMax => Range { low, high },
            RangeMethod::Percentile(percent) => {
                let share = percent / 100.0;
                Range { low: histogram.quantile(1.0 - share), high: histogram.quantile(share) }
            }
            RangeMethod::Mse => least_squares(histogram),
        })
    }
}

/// The range that activations are clipped to.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Range {
    /// The lower end.
    pub low: f32,
    /// The upper end.
    pub high: f32,
}

impl Range {
    /// The 8-bit numbers of the range, which is widened to contain 0. As torch's `MinMaxObserver` with `quint8`.
    pub fn affine(&self) -> Affine {
        let (low, high) = (self.low.min(0.0), self.high.max(0.0));
        let scale = ((high - low) / 255.0).max(f32::EPSILON);
        let zero_point = (-(low / scale).round_ties_even()).clamp(0.0, 255.0);
        Affine { scale, zero_point: zero_point as u8 }
    }
}

/// Unsigned codes of 8 bits: a value is `(code - zero_point) * scale`, so 0 has a code of its own.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Affine {
    /// The step between codes.
    pub scale: f32,
    /// The code of 0.
    pub zero_point: u8,
}

impl Affine {
    /// The code of `value`: `value / scale + zero_point` to the nearest whole number (to the even one of two), clamped to 0..=255.
    ///
    /// As torch, it multiplies by the reciprocal of the scale, and rounds before the zero point is added.
    pub fn code(&self, value: f32) -> u8 {
        let code = (value * (1.0 / self.scale)).round_ties_even() + f32::from(self.zero_point);
        code.clamp(0.0, 255.0) as u8
    }

    /// The value of `code`.
    pub fn value(&self, code: u8) -> f32 {
        (f32::from(code) - f32::from(self.zero_point)) * self.scale
    }
}

/// The ends that give the least squared error. Starting from all values, each end in turn is moved to the best of a grid of parts of
/// its largest extent, until nothing improves.
fn least_squares(histogram: &Histogram) -> Range {
    const PARTS: u32 = 128;
    let (least, most) = (f64::from(histogram.least).min(0.0), f64::from(histogram.most).max(0.0));
    let mut best = (expected_error(histogram, least, most), least, most);
    for _ in 0..8 {
        let before = best.0;
        for upper in [true, false] {
            for part in (1..PARTS).map(|part| f64::from(part) / f64::from(PARTS)) {
                let (low, high) = if upper { (best.1, most * part) } else { (least * part, best.2) };
                let error = expected_error(histogram, low, high);
                if error < best.0 {
                    best = (error, low, high);
                }
            }
        }
        if best.0 >= before {
            break;
        }
    }
    Range { low: (best.1 as f32).max(histogram.least.min(0.0)), high: best.2 as f32 }
}

/// The sum of squared errors with 255 steps from `low` to `high`: a twelfth of a step's square for each value inside that is not
/// exactly 0, which has a code of its own; the square of what is cut off for each value outside. Values are spread over their bin.
fn expected_error(histogram: &Histogram, low: f64, high: f64) -> f64 {
    let step = (high - low) / 255.0;
    let rounding = step * step / 12.0;
    let width = histogram.width;
    let spread = width * width / 12.0;
    let bins = histogram.bins().map(|(begin, count)| {
        let center = begin + 0.5 * width;
        let outside = (low - center).max(center - high).max(0.0);
        count as f64 * if outside > 0.0 { outside * outside + spread } else { rounding }
    });
    bins.sum::<f64>() - histogram.zeros as f64 * rounding
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(method: RangeMethod, values: &[f32]) -> Range {
        let mut calibrator = Calibrator::new(method).unwrap();
        for batch in values.chunks(100) {
            calibrator.observe(batch).unwrap();
        }
        calibrator.range().unwrap()
    }

    fn error(range: Range, values: &[f32]) -> f64 {
        let affine = range.affine();
        values.iter().map(|value| f64::from(affine.value(affine.code(*value)) - value).powi(2)).sum()
    }

    /// Roughly a normal distribution: the sum of twelve even ones.
    fn normal(count: usize) -> Vec<f32> {
        let mut state = 1_u32;
        let mut even = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32
        };
        (0..count).map(|_| (0..12).map(|_| even()).sum::<f32>() - 6.0).collect()
    }

    #[test]
    fn the_range_contains_zero() {
        assert_eq!(Range { low: 1.0, high: 5.1 }.affine(), Affine { scale: 0.02, zero_point: 0 });
        assert_eq!(Range { low: -5.1, high: -1.0 }.affine(), Affine { scale: 0.02, zero_point: 255 });
        assert_eq!(Range { low: 0.0, high: 0.0 }.affine(), Affine { scale: f32::EPSILON, zero_point: 0 });
    }

    #[test]
    fn one_outlier_does_not_set_the_range() {
        let mut values = normal(20_000);
        values[7_000] = 100.0;
        let all = range(RangeMethod::MinMax, &values);
        let most = range(RangeMethod::Percentile(99.9), &values);
        let best = range(RangeMethod::Mse, &values);
        assert_eq!(all.high, 100.0);
        assert!((2.5..4.0).contains(&most.high) && (-4.0..-2.5).contains(&most.low), "{most:?}");
        // The outlier itself costs most where it is cut off: without it, the rest has less error.
        assert!(error(best, &values) <= error(all, &values));
        values[7_000] = 0.0;
        assert!(error(most, &values) < 0.1 * error(all, &values));
    }

    #[test]
    fn many_zeros_do_not_narrow_the_range() {
        let some: Vec<f32> = normal(10_000).iter().map(|value| value.max(0.0)).collect();
        let mut padded = some.clone();
        padded.extend([0.0; 200_000]);
        assert_eq!(range(RangeMethod::Mse, &some), range(RangeMethod::Mse, &padded));
    }

    #[test]
    fn what_cannot_be_calibrated_is_refused() {
        for percent in [50.0, 0.0, 100.1, f64::NAN] {
            assert!(matches!(Calibrator::new(RangeMethod::Percentile(percent)), Err(Error::InvalidSetting { .. })));
        }
        let mut calibrator = Calibrator::new(RangeMethod::Mse).unwrap();
        assert!(matches!(calibrator.range(), Err(Error::InvalidSetting { .. })));
        assert!(matches!(calibrator.observe(&[1.0, f32::NAN]), Err(Error::NotFinite { .. })));
        // Nothing of the batch was taken.
        assert!(matches!(calibrator.range(), Err(Error::InvalidSetting { .. })));
    }

    proptest! {
        #[test]
        fn ranges_lie_in_each_other(values in prop::collection::vec(-1e3_f32..1e3, 1..300), percent in 50.1_f64..100.0) {
            let all = range(RangeMethod::MinMax, &values);
            for method in [RangeMethod::Percentile(percent), RangeMethod::Percentile(100.0), RangeMethod::Mse] {
                let inner = range(method, &values);
                prop_assert!(inner.low >= all.low.min(0.0) && inner.high <= all.high.max(0.0), "{inner:?} {all:?}");
                prop_assert!(inner.low <= inner.high, "{inner:?}");
            }
            prop_assert_eq!(range(RangeMethod::Percentile(100.0), &values), all);
        }

        #[test]
        fn zero_and_codes_are_exact(low in -1e3_f32..1.0, extent in 0_f32..1e3, code: u8) {
            let affine = Range { low, high: low + extent }.affine();
            prop_assert_eq!(affine.value(affine.code(0.0)), 0.0);
            prop_assert_eq!(affine.code(affine.value(code)), code);
        }
    }
}
