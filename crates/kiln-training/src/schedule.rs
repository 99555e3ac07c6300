//! The learning rate over a run.

use burn::optim::lr_scheduler::module_lr_scheduler::{ModuleLearningRate, ModuleLrScheduler};
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// The learning rate as a function of the updates so far: Kiln's warm-up and cosine, a constant, or a scheduler of burn.
///
/// A resumed run gets the rates of an uninterrupted one, because the rate depends only on the number of updates. A scheduler of burn is
/// therefore run again from its beginning.
#[derive(Clone)]
pub struct Schedule(Kind);

#[derive(Clone)]
enum Kind {
    Constant(f64),
    WarmupCosine(ScheduleConfig),
    Burn { initial: Box<ModuleLrScheduler>, current: Box<ModuleLrScheduler>, taken: u64, rate: ModuleLearningRate },
}

impl Schedule {
    /// A constant rate for the whole run.
    pub fn constant(rate: f64) -> Self {
        Self(Kind::Constant(rate))
    }

    /// The rates of a scheduler of burn, which takes one step for each update. Parameter groups are supported. Custom schedulers go
    /// through burn's `ModuleLrScheduler::new`.
    ///
    /// ```
    /// use burn::optim::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
    /// use kiln_training::Schedule;
    ///
    /// let schedule = Schedule::burn(CosineAnnealingLrSchedulerConfig::new(0.1, 1000).init()?);
    /// # Ok::<(), String>(())
    /// ```
    pub fn burn(scheduler: ModuleLrScheduler) -> Self {
        let initial = Box::new(scheduler);
        Self(Kind::Burn { current: initial.clone(), initial, taken: 0, rate: 0.0.into() })
    }

    /// Checks the numbers; `total` is the number of steps of the run, if it is known.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`].
    pub(crate) fn check(&self) -> Result<(), Error> {
        match &self.0 {
            Kind::Constant(rate) => ScheduleConfig { peak: *rate, ..ScheduleConfig::default() }.check(),
            Kind::WarmupCosine(config) => config.check(),
            Kind::Burn { .. } => Ok(()),
        }
    }

    /// The fraction of the run in which the rate rises. `None` for a scheduler of burn.
    pub(crate) fn warmup(&self) -> Option<f64> {
        match &self.0 {
            Kind::Constant(_) => Some(0.0),
            Kind::WarmupCosine(config) => Some(config.warmup),
            Kind::Burn { .. } => None,
        }
    }

    /// Multiplies all rates by `factor`. `None` for a scheduler of burn, whose rates cannot be changed.
    pub(crate) fn scaled(self, factor: f64) -> Option<Self> {
        match self.0 {
            Kind::Constant(rate) => Some(Self::constant(rate * factor)),
            Kind::WarmupCosine(config) => Some(ScheduleConfig { peak: config.peak * factor, ..config }.into()),
            Kind::Burn { .. } => None,
        }
    }

    /// Whether rates depend on the number of steps of the run.
    pub(crate) fn needs_total(&self) -> bool {
        matches!(self.0, Kind::WarmupCosine(_))
    }

    /// The rate of update number `update`, counted from zero, in a run of `total` steps.
    pub(crate) fn rate(&mut self, update: u64, total: u64) -> ModuleLearningRate {
        match &mut self.0 {
            Kind::Constant(rate) => (*rate).into(),
            Kind::WarmupCosine(config) => config.rate(update, total).into(),
            Kind::Burn { initial, current, taken, rate } => {
                if *taken > update + 1 {
                    (*current, *taken) = (initial.clone(), 0);
                }
                while *taken <= update {
                    *rate = current.step();
                    *taken += 1;
                }
                rate.clone()
            }
        }
    }
}

impl From<ScheduleConfig> for Schedule {
    fn from(config: ScheduleConfig) -> Self {
        Self(Kind::WarmupCosine(config))
    }
}

impl From<f64> for Schedule {
    /// A constant rate.
    fn from(rate: f64) -> Self {
        Self::constant(rate)
    }
}

/// Learning rate over a run: a linear warm-up, then half a cosine down to a fraction of the peak
/// (Loshchilov and Hutter 2017, without restarts).
///
/// A pure function of the step, so that there is no state to save.
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
        let invalid = |field, value: f64, expected| {
            Err(Error::InvalidSetting { name: field, value: value.to_string(), expected })
        };
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

    #[test]
    fn a_scheduler_of_burn_gives_the_same_rate_for_the_same_update_in_any_order() {
        let config = burn::optim::lr_scheduler::linear::LinearLrSchedulerConfig::new(1.0, 0.0, 10);
        let mut schedule = Schedule::burn(config.init().unwrap());
        let forward: Vec<f64> = (0..8).map(|update| schedule.rate(update, 8).base()).collect();
        assert!(forward.windows(2).all(|pair| pair[0] > pair[1]), "{forward:?}");
        let backward: Vec<f64> = (0..8).rev().map(|update| schedule.rate(update, 8).base()).collect();
        assert!(forward.iter().eq(backward.iter().rev()));
        assert_eq!(schedule.rate(7, 8).base(), schedule.rate(7, 8).base());
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
