//! The learning rate that fits the batch.

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::schedule::Schedule;

/// How the learning rate grows with the batch size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BatchRule {
    /// The rate is proportional to the batch: for SGD, with a warm-up (Goyal et al. 2017, section 2.1).
    Linear,
    /// The rate is proportional to the square root of the batch: for Adam and its variants (Malladi et al. 2022).
    Sqrt,
}

/// Scales a learning rate that was tuned for one batch size to runs with other batch sizes.
///
/// The *effective* batch counts: all samples of an update, over all replicas and all micro-batches. The rate does not change when
/// micro-batches become smaller because memory runs out.
///
/// ```
/// use kiln_training::{BatchRule, BatchScaling};
///
/// let scaling = BatchScaling { rule: BatchRule::Sqrt, base_batch: 64 };
/// assert_eq!(scaling.factor(256), 2.0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchScaling {
    /// How the rate grows.
    pub rule: BatchRule,
    /// The batch that the schedule's rate is meant for, in samples, at least 1.
    pub base_batch: usize,
}

impl BatchScaling {
    /// The factor to multiply the learning rate by for an effective batch of `effective_batch` samples.
    pub fn factor(&self, effective_batch: usize) -> f64 {
        let times = effective_batch as f64 / self.base_batch as f64;
        match self.rule {
            BatchRule::Linear => times,
            BatchRule::Sqrt => times.sqrt(),
        }
    }

    /// Returns `schedule` scaled for `effective_batch` samples.
    ///
    /// [`Error::InvalidSetting`] for a base batch of 0, and for a scheduler of burn. Also for a larger batch under [`BatchRule::Linear`]
    /// without a warm-up, because such runs diverge at their beginning.
    pub(crate) fn apply(&self, schedule: Schedule, effective_batch: usize) -> Result<Schedule, Error> {
        let invalid = |field, value: String, expected| Err(Error::InvalidSetting { name: field, value, expected });
        if self.base_batch == 0 {
            return invalid("base batch", "0".into(), "at least 1");
        }
        if self.rule == BatchRule::Linear && effective_batch > self.base_batch && schedule.has_no_warmup() {
            let expected = "above 0: the linear rule for a larger batch needs a warm-up; or the rule sqrt";
            return invalid("warmup", "0".into(), expected);
        }
        match schedule.scaled(self.factor(effective_batch)) {
            Some(schedule) => Ok(schedule),
            None => {
                let expected =
                    "a constant rate or a ScheduleConfig; scale the rates of burn's scheduler where it is made";
                invalid("schedule with a base batch", "a scheduler of burn".into(), expected)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::optim::lr_scheduler::linear::LinearLrSchedulerConfig;
    use proptest::prelude::*;

    use super::*;
    use crate::schedule::{ScheduleConfig, Warmup};

    const WARM: ScheduleConfig = ScheduleConfig::cosine(0.1).with_warmup(Warmup::Fraction(0.1));

    fn scaling(rule: BatchRule, base_batch: usize) -> BatchScaling {
        BatchScaling { rule, base_batch }
    }

    #[test]
    fn goyals_rate_for_8192_images() {
        // Table 1 of Goyal et al. 2017: 0.1 for 256 images, 3.2 for 8,192.
        let mut schedule = scaling(BatchRule::Linear, 256).apply(WARM.into(), 8192).unwrap();
        assert!((schedule.rate(10, 100).base() - 3.2).abs() < 1e-12);
    }

    proptest! {
        #[test]
        fn two_steps_of_scaling_are_one(a in 1usize..2000, b in 1usize..2000, c in 1usize..2000) {
            for rule in [BatchRule::Linear, BatchRule::Sqrt] {
                let once = scaling(rule, a).factor(c);
                let twice = scaling(rule, a).factor(b) * scaling(rule, b).factor(c);
                prop_assert!((once - twice).abs() <= 1e-12 * once);
                prop_assert_eq!(scaling(rule, a).factor(a), 1.0);
            }
        }
    }

    #[test]
    fn what_cannot_be_scaled_is_refused() {
        let config = LinearLrSchedulerConfig::new(1.0, 0.1, 10);
        let burns = Schedule::burn(config.init().unwrap());
        let cold = WARM.with_warmup(Warmup::NONE);
        for (scaling, schedule, word) in [
            (scaling(BatchRule::Sqrt, 0), WARM.into(), "base batch"),
            (scaling(BatchRule::Sqrt, 8), burns, "burn"),
            (scaling(BatchRule::Linear, 8), cold.into(), "warm-up"),
            (scaling(BatchRule::Linear, 8), Schedule::constant(0.1), "warm-up"),
        ] {
            let error = scaling.apply(schedule, 16).map(|_| ()).unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
        }
        // Neither a smaller batch nor the square-root rule needs a warm-up.
        assert!(scaling(BatchRule::Linear, 32).apply(cold.into(), 16).is_ok());
        assert!(scaling(BatchRule::Sqrt, 8).apply(Schedule::constant(0.1), 16).is_ok());
    }
}
