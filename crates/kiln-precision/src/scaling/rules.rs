//! The rules of a loss scale, as a pure state machine.

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::precision::Precision;

/// The loss scale: a factor on the loss that keeps small gradients above zero in f16 (Micikevicius et al. 2018, section 3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Scaling {
    /// No loss scale, for f32 and bf16.
    #[default]
    None,
    /// A fixed factor.
    Static(f64),
    /// A factor that is reduced at an overflow and grows after a number of steps without one.
    Dynamic(ScalerConfig),
}

/// The rules of a dynamic loss scale. The defaults are those of torch's `GradScaler`, plus a floor.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScalerConfig {
    /// The first scale.
    pub initial: f64,
    /// Factor of the scale after `interval` steps without overflow, above 1.
    pub growth: f64,
    /// Factor of the scale at an overflow, between 0 and 1.
    pub backoff: f64,
    /// Steps without overflow before the scale grows.
    pub interval: u32,
    /// The least scale. An overflow at this scale is an error.
    pub floor: f64,
}

impl Default for ScalerConfig {
    fn default() -> Self {
        Self { initial: 65536.0, growth: 2.0, backoff: 0.5, interval: 2000, floor: 1.0 }
    }
}

impl ScalerConfig {
    /// The rules of torch's `GradScaler`, with a floor of 1.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the first scale.
    pub fn with_initial(mut self, initial: f64) -> Self {
        self.initial = initial;
        self
    }

    /// Sets the factor of the scale after [`interval`](Self::interval) steps without overflow, above 1.
    pub fn with_growth(mut self, growth: f64) -> Self {
        self.growth = growth;
        self
    }

    /// Sets the factor of the scale at an overflow, between 0 and 1.
    pub fn with_backoff(mut self, backoff: f64) -> Self {
        self.backoff = backoff;
        self
    }

    /// Sets the number of steps without overflow before the scale grows.
    pub fn with_interval(mut self, steps: u32) -> Self {
        self.interval = steps;
        self
    }

    /// Sets the least scale. An overflow at this scale is an error.
    pub fn with_floor(mut self, floor: f64) -> Self {
        self.floor = floor;
        self
    }
}

/// The state of a loss scale. A run that is resumed with its saved state continues as if it had not been interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScalerState {
    /// The factor of the loss.
    pub scale: f64,
    /// Steps since the scale changed.
    pub streak: u32,
}

fn require(field: &'static str, value: f64, holds: bool, expected: &'static str) -> Result<(), Error> {
    match holds && value.is_finite() {
        true => Ok(()),
        false => Err(Error::InvalidScaler { field, value, expected }),
    }
}

/// Whether a scale is a normal number above 0 in f32, which is the dtype of losses.
fn in_f32(scale: f64) -> bool {
    scale > 0.0 && (scale as f32).is_normal()
}

impl Scaling {
    /// The scaling that a precision needs: dynamic for f16, none otherwise.
    pub fn for_precision(precision: Precision) -> Self {
        match precision {
            Precision::F16 => Self::Dynamic(ScalerConfig::default()),
            Precision::F32 | Precision::BF16 => Self::None,
        }
    }

    /// Checks that each setting is in its range.
    ///
    /// # Errors
    /// [`Error::InvalidScaler`].
    pub fn check(&self) -> Result<(), Error> {
        match *self {
            Self::None => Ok(()),
            Self::Static(scale) => require("scale", scale, in_f32(scale), "a number above 0 that f32 holds"),
            Self::Dynamic(config) => {
                let ScalerConfig { initial, growth, backoff, interval, floor } = config;
                let interval = f64::from(interval);
                require("floor", floor, in_f32(floor), "a number above 0 that f32 holds")?;
                require(
                    "initial scale",
                    initial,
                    initial >= floor && in_f32(initial),
                    "a number that f32 holds, at least the floor",
                )?;
                require("growth", growth, growth > 1.0, "a finite number above 1")?;
                require("backoff", backoff, backoff > 0.0 && backoff < 1.0, "a number between 0 and 1")?;
                require("growth interval", interval, interval >= 1.0, "at least 1")
            }
        }
    }

    /// Checks that these rules can reach `state`.
    pub(crate) fn accepts(&self, state: ScalerState) -> Result<(), Error> {
        let scale = state.scale;
        match *self {
            Self::Dynamic(config) => {
                let holds = scale >= config.floor && in_f32(scale);
                require("saved scale", scale, holds, "a number that f32 holds, at least the floor")
            }
            Self::None | Self::Static(_) => {
                require("saved scale", scale, scale == self.start().scale, "the scale of this run, which is fixed")
            }
        }
    }

    /// The state before the first step.
    pub fn start(&self) -> ScalerState {
        let scale = match *self {
            Self::None => 1.0,
            Self::Static(scale) => scale,
            Self::Dynamic(config) => config.initial,
        };
        ScalerState { scale, streak: 0 }
    }

    /// The state after a step. `finite` says whether all gradients were finite; if not, the step is skipped and the scale is
    /// reduced. `None` when it cannot be reduced further.
    pub fn next(&self, state: ScalerState, finite: bool) -> Option<ScalerState> {
        let ScalerState { scale, streak } = state;
        match self {
            Self::None | Self::Static(_) => finite.then_some(state),
            Self::Dynamic(config) if !finite => {
                let lower = (scale * config.backoff).max(config.floor);
                (lower < scale).then_some(ScalerState { scale: lower, streak: 0 })
            }
            Self::Dynamic(config) if streak.saturating_add(1) >= config.interval => {
                // The loss is multiplied in f32, where the scale must be finite.
                let higher = Some(scale * config.growth).filter(|higher| (*higher as f32).is_finite());
                Some(ScalerState { scale: higher.unwrap_or(scale), streak: 0 })
            }
            Self::Dynamic(_) => Some(ScalerState { scale, streak: streak + 1 }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// torch 2's `GradScaler` as its documentation describes it, without a floor.
    fn torch(config: &ScalerConfig, (scale, tracker): (f64, u32), found_inf: bool) -> (f64, u32) {
        if found_inf {
            return (scale * config.backoff, 0);
        }
        if tracker + 1 == config.interval { (scale * config.growth, 0) } else { (scale, tracker + 1) }
    }

    proptest! {
        #[test]
        fn a_dynamic_scale_is_torchs_above_the_floor(
            interval in 1u32..6, overflows in prop::collection::vec(any::<bool>(), 0..60),
        ) {
            let config = ScalerConfig::new().with_interval(interval);
            let scaling = Scaling::Dynamic(config);
            let mut state = scaling.start();
            for overflow in overflows {
                let expected = torch(&config, (state.scale, state.streak), overflow);
                match scaling.next(state, !overflow) {
                    Some(next) => {
                        prop_assert_eq!((next.scale, next.streak), (expected.0.max(config.floor), expected.1));
                        state = next;
                    }
                    None => prop_assert!(overflow && state.scale == config.floor),
                }
            }
        }

        #[test]
        fn a_scale_stays_within_its_floor_and_what_f32_holds(
            initial in 0f64..120.0, growth in 1.01f64..1e6, backoff in 0.01f64..0.99,
            overflows in prop::collection::vec(any::<bool>(), 0..200),
        ) {
            let config = ScalerConfig::new().with_initial(initial.exp2()).with_growth(growth).with_backoff(backoff);
            let config = config.with_interval(1).with_floor(0.5);
            let scaling = Scaling::Dynamic(config);
            scaling.check().unwrap();
            let mut state = scaling.start();
            for overflow in overflows {
                state = scaling.next(state, !overflow).unwrap_or(state);
                prop_assert!(state.scale >= config.floor && (state.scale as f32).is_finite());
            }
        }
    }

    #[test]
    fn numbers_out_of_range_are_refused_by_name() {
        let dynamic = |change: fn(&mut ScalerConfig)| {
            let mut config = ScalerConfig::default();
            change(&mut config);
            Scaling::Dynamic(config).check().unwrap_err().to_string()
        };
        assert_eq!(dynamic(|c| c.growth = 1.0), "the growth of the loss scaler is 1, expected a finite number above 1");
        assert!(dynamic(|c| c.growth = f64::NAN).contains("growth"));
        assert!(dynamic(|c| c.backoff = 1.0).contains("between 0 and 1"));
        assert!(dynamic(|c| c.backoff = 0.0).contains("between 0 and 1"));
        assert!(dynamic(|c| c.interval = 0).contains("interval"));
        assert!(dynamic(|c| c.floor = 0.0).contains("floor"));
        assert!(dynamic(|c| c.initial = 0.5).contains("at least the floor"));
        assert!(dynamic(|c| c.initial = f64::INFINITY).contains("initial"));
        for scale in [0.0, -2.0, 1e-60, 1e300, f64::NAN, f64::INFINITY] {
            assert!(
                matches!(Scaling::Static(scale).check(), Err(Error::InvalidScaler { field: "scale", .. })),
                "{scale}"
            );
        }
    }

    #[test]
    fn a_fixed_scale_does_not_change_and_an_overflow_is_final() {
        for scaling in [Scaling::None, Scaling::Static(8.0)] {
            let state = scaling.start();
            assert_eq!(scaling.next(state, true), Some(state));
            assert_eq!(scaling.next(state, false), None);
        }
    }

    #[test]
    fn a_state_survives_json_bit_for_bit() {
        let state = ScalerState { scale: 65536.0 / 3.0, streak: 17 };
        let text = serde_json::to_string(&state).unwrap();
        assert_eq!(serde_json::from_str::<ScalerState>(&text).unwrap().scale.to_bits(), state.scale.to_bits());
    }
}
