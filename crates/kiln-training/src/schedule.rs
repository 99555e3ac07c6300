use serde::{Deserialize, Serialize};

use crate::Error;

/// Learning rate over a run: a linear warm-up, then half a cosine down to a fraction of the peak
/// (Loshchilov and Hutter 2017, without restarts).
///
/// A pure function of the step, so that there is no state to save. burn's schedulers are not used because
/// they advance when asked for a rate and refuse rates above 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScheduleConfig {
    /// The highest learning rate, above 0.
    pub peak: f64,
    /// Fraction of the run's steps in which the rate rises, in [0, 1].
    pub warmup: f64,
    /// The last rate as a fraction of the peak, in [0, 1].
    pub floor: f64,
}

impl Default for ScheduleConfig {
    fn default() -> Self {
        Self { peak: 0.1, warmup: 0.05, floor: 0.0 }
    }
}

impl ScheduleConfig {
    /// Checks the numbers.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`].
    pub fn check(&self) -> Result<(), Error> {
        let invalid =
            |field, value: f64, expected| Err(Error::InvalidSetting { field, value: value.to_string(), expected });
        if !(self.peak > 0.0 && self.peak.is_finite()) {
            return invalid("learning rate", self.peak, "a finite number above 0");
        }
        for (field, value) in [("warmup", self.warmup), ("floor", self.floor)] {
            if !(0.0..=1.0).contains(&value) {
                return invalid(field, value, "a fraction in [0, 1]");
            }
        }
        Ok(())
    }

    /// The learning rate of `step`, counted from zero, in a run of `total` steps. Steps past the end
    /// keep the last rate.
    pub fn rate(&self, step: u64, total: u64) -> f64 {
        let warmup = (self.warmup * total as f64).round();
        let step = step as f64;
        if step < warmup {
            return self.peak * (step + 1.0) / warmup;
        }
        let decay = (total as f64 - warmup).max(1.0);
        let progress = ((step - warmup) / decay).min(1.0);
        let cosine = 0.5 * (1.0 + (std::f64::consts::PI * progress).cos());
        self.peak * (self.floor + (1.0 - self.floor) * cosine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn warms_up_peaks_and_decays() {
        let schedule = ScheduleConfig { peak: 2.0, warmup: 0.1, floor: 0.1 };
        assert_eq!(schedule.rate(0, 100), 0.2);
        assert_eq!(schedule.rate(9, 100), 2.0);
        assert_eq!(schedule.rate(10, 100), 2.0);
        assert!((schedule.rate(55, 100) - 2.0 * 0.55).abs() < 1e-12); // half way down
        assert!((schedule.rate(100, 100) - 0.2).abs() < 1e-12);
        assert_eq!(schedule.rate(100, 100), schedule.rate(1000, 100));
    }

    proptest! {
        #[test]
        fn rates_stay_within_bounds_and_fall_after_the_warmup(
            peak in 1e-6f64..10.0, warmup in 0.0f64..1.0, floor in 0.0f64..1.0, total in 1u64..5000,
        ) {
            let schedule = ScheduleConfig { peak, warmup, floor };
            let rates: Vec<f64> = (0..total).map(|step| schedule.rate(step, total)).collect();
            prop_assert!(rates.iter().all(|rate| *rate > -1e-12 && *rate <= peak * (1.0 + 1e-12)));
            let top = (warmup * total as f64).round() as usize;
            prop_assert!(rates[..top].windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert!(rates[top.min(rates.len())..].windows(2).all(|pair| pair[0] >= pair[1] - 1e-15));
        }
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        let ok = ScheduleConfig::default();
        for bad in [
            ScheduleConfig { peak: 0.0, ..ok },
            ScheduleConfig { peak: f64::NAN, ..ok },
            ScheduleConfig { warmup: 1.1, ..ok },
            ScheduleConfig { floor: -0.1, ..ok },
        ] {
            assert!(matches!(bad.check(), Err(Error::InvalidSetting { .. })), "{bad:?}");
        }
        assert!(ok.check().is_ok());
    }
}
