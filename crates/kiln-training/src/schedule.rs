//! The learning rate over a run.

use std::fmt::{Display, Formatter};
use std::str::FromStr;

use burn::optim::lr_scheduler::module_lr_scheduler::{ModuleLearningRate, ModuleLrScheduler};
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// The learning rate as a function of the updates so far: Kiln's warm-up and decay, a constant, or a scheduler of burn.
///
/// A resumed run gets the rates of an uninterrupted one, because the rate depends only on the number of updates. A scheduler of burn is
/// therefore run again from its beginning.
#[derive(Clone)]
pub struct Schedule(Kind);

#[derive(Clone)]
enum Kind {
    Config(ScheduleConfig),
    Burn { initial: Box<ModuleLrScheduler>, current: Box<ModuleLrScheduler>, taken: u64, rate: ModuleLearningRate },
}

impl Schedule {
    /// A constant rate for the whole run.
    pub fn constant(rate: f64) -> Self {
        Self(Kind::Config(ScheduleConfig::constant(rate)))
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
            Kind::Config(config) => config.check(),
            Kind::Burn { .. } => Ok(()),
        }
    }

    /// Whether the first update has the highest rate at once. A scheduler of burn does not say.
    pub(crate) fn has_no_warmup(&self) -> bool {
        matches!(&self.0, Kind::Config(config) if config.warmup.is_none())
    }

    /// Multiplies all rates by `factor`. `None` for a scheduler of burn, whose rates cannot be changed.
    pub(crate) fn scaled(self, factor: f64) -> Option<Self> {
        match self.0 {
            Kind::Config(config) => Some(ScheduleConfig { peak: config.peak * factor, ..config }.into()),
            Kind::Burn { .. } => None,
        }
    }

    /// Whether it is a scheduler of burn, whose rates cannot be changed.
    pub(crate) fn is_burns(&self) -> bool {
        matches!(self.0, Kind::Burn { .. })
    }

    /// Whether rates depend on the number of steps of the run.
    pub(crate) fn needs_total(&self) -> bool {
        matches!(&self.0, Kind::Config(config) if config.needs_total())
    }

    /// The rate of update number `update`, counted from zero, in a run of `total` steps.
    pub(crate) fn rate(&mut self, update: u64, total: u64) -> ModuleLearningRate {
        match &mut self.0 {
            Kind::Config(config) => config.rate(update, total).into(),
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
        Self(Kind::Config(config))
    }
}

impl From<f64> for Schedule {
    /// A constant rate.
    fn from(rate: f64) -> Self {
        Self::constant(rate)
    }
}

/// How the learning rate falls after the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decay {
    /// Half a cosine (Loshchilov and Hutter 2017, without restarts).
    #[default]
    Cosine,
    /// By the same amount in each step.
    Linear,
    /// Not at all.
    Constant,
}

/// How long the learning rate rises at the beginning of a run. A settings file has a whole number of steps, or a fraction with a decimal
/// point.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a whole number of steps, or a fraction of the run in [0, 1] as in 0.1")]
pub enum Warmup {
    /// A number of steps, which does not depend on the length of the run.
    Steps(u64),
    /// A fraction of the run's steps, in [0, 1].
    Fraction(f64),
}

impl Warmup {
    /// No warm-up.
    pub const NONE: Self = Self::Steps(0);

    fn is_none(self) -> bool {
        matches!(self, Self::Steps(0) | Self::Fraction(0.0))
    }

    /// Steps in a run of `total` steps.
    fn steps(self, total: u64) -> f64 {
        match self {
            Self::Steps(steps) => steps as f64,
            Self::Fraction(fraction) => (fraction * total as f64).round(),
        }
    }
}

impl Display for Warmup {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Steps(steps) => steps.fmt(f),
            Self::Fraction(fraction) => write!(f, "{fraction:?}"),
        }
    }
}

impl FromStr for Warmup {
    type Err = Error;

    /// Parses `100` as steps, and `0.1` as a fraction.
    fn from_str(text: &str) -> Result<Self, Error> {
        let parsed = match text.parse() {
            Ok(steps) => Some(Self::Steps(steps)),
            Err(_) => text.parse().ok().map(Self::Fraction),
        };
        let warmup = parsed.ok_or(text.to_owned()).and_then(|warmup| warmup.check().map(|()| warmup));
        warmup.map_err(|value| Error::InvalidSetting { name: "warmup", value, expected: WARMUP })
    }
}

/// What [`Warmup`] accepts.
const WARMUP: &str = "a whole number of steps, or a fraction of the run in [0, 1] as in 0.1";

impl Warmup {
    /// The value, if it is none.
    fn check(self) -> Result<(), String> {
        match self {
            Self::Fraction(fraction) if !(0.0..=1.0).contains(&fraction) => Err(fraction.to_string()),
            _ => Ok(()),
        }
    }
}

/// Learning rate over a run: a linear warm-up, then a decay down to a fraction of the peak.
///
/// A pure function of the step, so that there is no state to save.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScheduleConfig {
    /// The highest learning rate, above 0.
    pub peak: f64,
    /// How long the rate rises.
    pub warmup: Warmup,
    /// How the rate falls afterwards.
    pub decay: Decay,
    /// The last rate as a fraction of the peak, in [0, 1]. A constant rate has no other.
    pub floor: f64,
}

impl Default for ScheduleConfig {
    /// Half a cosine from 0.1 to 0, after a warm-up over a twentieth of the run.
    fn default() -> Self {
        Self::cosine(0.1).with_warmup(Warmup::Fraction(0.05))
    }
}

impl ScheduleConfig {
    /// Half a cosine from `peak` to 0, without a warm-up.
    pub const fn cosine(peak: f64) -> Self {
        Self { peak, warmup: Warmup::NONE, decay: Decay::Cosine, floor: 0.0 }
    }

    /// The rate `peak` in the whole run.
    pub const fn constant(peak: f64) -> Self {
        Self { decay: Decay::Constant, ..Self::cosine(peak) }
    }

    /// Sets how long the rate rises.
    pub const fn with_warmup(mut self, warmup: Warmup) -> Self {
        self.warmup = warmup;
        self
    }

    /// Sets how the rate falls.
    pub const fn with_decay(mut self, decay: Decay) -> Self {
        self.decay = decay;
        self
    }

    /// Sets the last rate as a fraction of the peak.
    pub const fn with_floor(mut self, floor: f64) -> Self {
        self.floor = floor;
        self
    }

    /// Checks the numbers.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`].
    pub fn check(&self) -> Result<(), Error> {
        let invalid = |name, value, expected| Err(Error::InvalidSetting { name, value, expected });
        if !(self.peak > 0.0 && self.peak.is_finite()) {
            return invalid("learning rate", self.peak.to_string(), "a finite number above 0");
        }
        if let Err(value) = self.warmup.check() {
            return invalid("warmup", value, WARMUP);
        }
        if !(0.0..=1.0).contains(&self.floor) {
            return invalid("floor", self.floor.to_string(), "a fraction in [0, 1]");
        }
        Ok(())
    }

    /// Whether rates depend on the number of steps of the run.
    fn needs_total(&self) -> bool {
        let constant =
            self.decay == Decay::Constant && (self.warmup.is_none() || matches!(self.warmup, Warmup::Steps(_)));
        !constant
    }

    /// The learning rate of `step`, counted from zero, in a run of `total` steps. Steps past the end
    /// keep the last rate.
    pub fn rate(&self, step: u64, total: u64) -> f64 {
        let warmup = self.warmup.steps(total);
        let step = step as f64;
        if step < warmup {
            return self.peak * (step + 1.0) / warmup;
        }
        let decay = (total as f64 - warmup).max(1.0);
        let progress = ((step - warmup) / decay).min(1.0);
        let left = match self.decay {
            Decay::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * progress).cos()),
            Decay::Linear => 1.0 - progress,
            Decay::Constant => return self.peak,
        };
        self.peak * (self.floor + (1.0 - self.floor) * left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn warms_up_peaks_and_decays() {
        let schedule = ScheduleConfig::cosine(2.0).with_warmup(Warmup::Fraction(0.1)).with_floor(0.1);
        assert_eq!(schedule.rate(0, 100), 0.2);
        assert_eq!(schedule.rate(9, 100), 2.0);
        assert_eq!(schedule.rate(10, 100), 2.0);
        assert!((schedule.rate(55, 100) - 2.0 * 0.55).abs() < 1e-12); // half way down
        assert!((schedule.rate(100, 100) - 0.2).abs() < 1e-12);
        assert_eq!(schedule.rate(100, 100), schedule.rate(1000, 100));
    }

    #[test]
    fn each_decay_ends_at_its_last_rate() {
        let schedule = ScheduleConfig::cosine(1.0).with_warmup(Warmup::Steps(20)).with_floor(0.2);
        for (decay, middle, last) in [(Decay::Cosine, 0.6, 0.2), (Decay::Linear, 0.6, 0.2), (Decay::Constant, 1.0, 1.0)]
        {
            let rate = |step| schedule.with_decay(decay).rate(step, 120);
            assert_eq!((rate(0), rate(19)), (0.05, 1.0), "{decay:?}");
            assert!((rate(70) - middle).abs() < 1e-12 && (rate(120) - last).abs() < 1e-12, "{decay:?}");
            // A warm-up longer than the run has only its beginning.
            assert_eq!(schedule.with_decay(decay).rate(9, 10), 0.5);
        }
    }

    #[test]
    fn rates_that_depend_on_the_length_of_the_run_need_it() {
        for (schedule, needs) in [
            (ScheduleConfig::cosine(1.0), true),
            (ScheduleConfig::constant(1.0), false),
            (ScheduleConfig::constant(1.0).with_warmup(Warmup::Steps(5)), false),
            (ScheduleConfig::constant(1.0).with_warmup(Warmup::Fraction(0.1)), true),
        ] {
            assert_eq!(Schedule::from(schedule).needs_total(), needs, "{schedule:?}");
        }
    }

    #[test]
    fn a_warmup_is_steps_or_a_fraction_in_text_and_in_a_file() {
        for (text, warmup) in [
            ("100", Warmup::Steps(100)),
            ("0", Warmup::Steps(0)),
            ("1", Warmup::Steps(1)),
            ("0.1", Warmup::Fraction(0.1)),
            ("1.0", Warmup::Fraction(1.0)),
        ] {
            assert_eq!(text.parse::<Warmup>().unwrap(), warmup);
            assert_eq!(warmup.to_string(), text);
            let config: ScheduleConfig = serde_json::from_str(&format!("{{\"warmup\": {text}}}")).unwrap();
            assert_eq!(config.warmup, warmup);
            let config = config.with_decay(Decay::Linear);
            assert_eq!(
                serde_json::from_str::<ScheduleConfig>(&serde_json::to_string(&config).unwrap()).unwrap(),
                config
            );
        }
        for text in ["1.5", "-1", "-0.1", "ten", "", "NaN"] {
            assert!(text.parse::<Warmup>().unwrap_err().to_string().contains("a whole number of steps"), "{text}");
        }
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
            peak in 1e-6f64..10.0, warmup in 0.0f64..1.0, steps: bool, decay in 0usize..3, floor in 0.0f64..1.0, total in 1u64..5000,
        ) {
            let decay = [Decay::Cosine, Decay::Linear, Decay::Constant][decay];
            let warmup = if steps { Warmup::Steps((warmup * 6000.0) as u64) } else { Warmup::Fraction(warmup) };
            let schedule = ScheduleConfig::cosine(peak).with_warmup(warmup).with_decay(decay).with_floor(floor);
            let rates: Vec<f64> = (0..total).map(|step| schedule.rate(step, total)).collect();
            prop_assert!(rates.iter().all(|rate| *rate > -1e-12 && *rate <= peak * (1.0 + 1e-12)));
            let top = (warmup.steps(total) as usize).min(rates.len());
            prop_assert!(rates[..top].windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert!(rates[top..].windows(2).all(|pair| pair[0] >= pair[1] - 1e-15));
        }
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        let ok = ScheduleConfig::default();
        for bad in [
            ScheduleConfig { peak: 0.0, ..ok },
            ScheduleConfig { peak: f64::NAN, ..ok },
            ok.with_warmup(Warmup::Fraction(1.1)),
            ok.with_warmup(Warmup::Fraction(f64::NAN)),
            ok.with_floor(-0.1),
        ] {
            assert!(matches!(bad.check(), Err(Error::InvalidSetting { .. })), "{bad:?}");
        }
        assert!(ok.check().is_ok());
    }
}
