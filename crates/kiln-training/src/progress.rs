//! Whether a run still improves: its best evaluation so far, and when to end early.

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Which values of a metric are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Goal {
    /// High ones, as of an accuracy.
    Highest,
    /// Low ones, as of a loss.
    Lowest,
}

impl Goal {
    /// Whether `value` is better than `other`. A value that is not finite is never better.
    pub fn prefers(self, value: f64, other: f64) -> bool {
        value.is_finite()
            && match self {
                Self::Highest => value > other,
                Self::Lowest => value < other,
            }
    }
}

/// The metric that decides which checkpoint is the best one, which is kept apart from the newest ones. A run may also end when the metric
/// stops improving.
///
/// ```
/// use kiln_training::{BestConfig, Goal};
///
/// let config = BestConfig::new("val_accuracy", Goal::Highest).with_patience(5);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BestConfig {
    metric: String,
    goal: Goal,
    patience: Option<u64>,
    /// Evaluations without a better value after which the learning rate is multiplied by the factor.
    #[serde(default)]
    reduction: Option<(u64, f64)>,
}

impl BestConfig {
    /// Judges by one of the metrics that an evaluation reports.
    pub fn new(metric: impl Into<String>, goal: Goal) -> Self {
        Self { metric: metric.into(), goal, patience: None, reduction: None }
    }

    /// Ends the run after this many evaluations in a row without a better value. `None`: never.
    #[must_use]
    pub fn with_patience(self, evaluations: impl Into<Option<u64>>) -> Self {
        Self { patience: evaluations.into(), ..self }
    }

    /// Multiplies the learning rate by `factor` after this many evaluations in a row without a better value, and after each as many more: as
    /// `ReduceLROnPlateau` of Keras does, and PyTorch's with a patience of one less. It needs a schedule that is no scheduler of burn.
    #[must_use]
    pub fn with_reduction(self, evaluations: u64, factor: f64) -> Self {
        Self { reduction: Some((evaluations, factor)), ..self }
    }

    /// The factor of the learning rate, if it is reduced.
    pub(crate) fn reduction(&self) -> Option<f64> {
        self.reduction.map(|(_, factor)| factor)
    }

    /// Checks the numbers, for a schedule whose rates can be reduced or not.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`].
    pub(crate) fn check(&self, can_be_reduced: bool) -> Result<(), Error> {
        let invalid = |name, value: String, expected| Err(Error::InvalidSetting { name, value, expected });
        match self.reduction {
            Some((0, _)) => invalid("evaluations before the learning rate is reduced", "0".into(), "at least 1"),
            Some((_, factor)) if !(factor > 0.0 && factor < 1.0) => {
                invalid("factor of the learning rate", factor.to_string(), "between 0 and 1")
            }
            Some(_) if !can_be_reduced => {
                let expected = "a constant rate or a ScheduleConfig: burn's scheduler decides about its rates itself";
                invalid("schedule whose rate is reduced", "a scheduler of burn".into(), expected)
            }
            _ => Ok(()),
        }
    }

    /// The name of the metric.
    pub fn metric(&self) -> &str {
        &self.metric
    }

    /// The evaluations without a better value after which the run ends.
    pub fn patience(&self) -> Option<u64> {
        self.patience
    }
}

/// The best evaluation of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// The steps of the run at the evaluation.
    pub step: u64,
    /// The value of the metric.
    #[serde(with = "exact")]
    pub value: f64,
}

/// The evaluations of a run so far, reduced to the facts that its best checkpoint and its early end depend on. It is saved with the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// The best evaluation, the first of several equal ones.
    pub best: Option<Best>,
    /// Evaluations since then.
    pub without_improvement: u64,
    /// The step of the last evaluation. An evaluation that is repeated does not count twice.
    last: Option<u64>,
}

impl Progress {
    /// The progress after an evaluation at `step` that gave `value`. A value that is not finite is no improvement.
    #[must_use]
    pub fn after(self, goal: Goal, step: u64, value: f64) -> Self {
        if self.last == Some(step) {
            return self;
        }
        let better = match self.best {
            Some(best) => goal.prefers(value, best.value),
            None => value.is_finite(),
        };
        match better {
            true => Self { best: Some(Best { step, value }), without_improvement: 0, last: Some(step) },
            false => Self { without_improvement: self.without_improvement + 1, last: Some(step), ..self },
        }
    }

    /// The progress after an evaluation at `step` that gave `value`, under the goal of `config`.
    pub(crate) fn judged(self, config: &BestConfig, step: u64, value: f64) -> Self {
        self.after(config.goal, step, value)
    }

    /// Whether the evaluation at `step` was the best so far.
    pub fn improved_at(&self, step: u64) -> bool {
        self.best.is_some_and(|best| best.step == step)
    }

    /// Whether the run ends under this patience.
    pub fn is_over(&self, patience: Option<u64>) -> bool {
        patience.is_some_and(|patience| self.without_improvement >= patience)
    }

    /// Whether the learning rate is reduced after the evaluation that came last.
    pub(crate) fn reduces(&self, config: &BestConfig) -> bool {
        let without = self.without_improvement;
        config.reduction.is_some_and(|(evaluations, _)| without > 0 && without.is_multiple_of(evaluations))
    }

    /// The progress without its best evaluation, for a run whose best checkpoint is lost. The other fields stay.
    pub(crate) fn without_best(self) -> Self {
        Self { best: None, ..self }
    }
}

/// Saves a number as text: JSON parsers may round the last digit, and then a tie would look like an improvement.
mod exact {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|_| D::Error::custom(format!("the best value is '{text}', expected a number")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_run_ends_after_so_many_evaluations_without_a_better_one() {
        let values = [0.5, 0.7, 0.7, f64::NAN, 0.6, 0.8];
        let mut progress = Progress::default();
        let mut over = vec![];
        for (step, value) in (10..).step_by(10).zip(values) {
            progress = progress.after(Goal::Highest, step, value);
            over.push(progress.is_over(Some(3)));
        }
        assert_eq!(over, [false, false, false, false, true, false]);
        assert_eq!(progress.best, Some(Best { step: 60, value: 0.8 }));
        assert!(!progress.is_over(None) && progress.improved_at(60) && !progress.improved_at(20));
    }

    #[test]
    fn the_rate_is_reduced_after_so_many_evaluations_and_after_as_many_more() {
        let config = BestConfig::new("val_loss", Goal::Lowest).with_reduction(2, 0.1);
        let mut progress = Progress::default();
        let mut reduced = vec![];
        for (step, value) in [5.0, 4.0, 4.0, 4.5, 6.0, 5.0, 3.0, 4.0].into_iter().enumerate() {
            progress = progress.judged(&config, step as u64, value);
            reduced.push(progress.reduces(&config));
        }
        assert_eq!(reduced, [false, false, false, true, false, true, false, false]);
        for (config, burns, part) in [
            (config.clone().with_reduction(0, 0.1), false, "at least 1"),
            (config.clone().with_reduction(1, 1.0), false, "between 0 and 1"),
            (config.clone(), true, "burn"),
        ] {
            assert!(config.check(!burns).unwrap_err().to_string().contains(part), "{config:?}");
        }
        assert!(config.check(true).is_ok() && BestConfig::new("loss", Goal::Lowest).check(false).is_ok());
    }

    #[test]
    fn a_repeated_evaluation_does_not_count() {
        let once = Progress::default().after(Goal::Lowest, 5, 1.0).after(Goal::Lowest, 6, 2.0);
        assert_eq!(once.after(Goal::Lowest, 6, 2.0), once);
        assert_eq!(once.without_improvement, 1);
    }

    proptest! {
        #[test]
        fn the_best_is_the_first_of_the_extremes_also_across_a_save(
            values in prop::collection::vec((-1e3f64..1e3).prop_map(|value| (value * 4.0).round() / 3.0), 1..40),
            saved_at in 0usize..40, highest: bool,
        ) {
            let goal = if highest { Goal::Highest } else { Goal::Lowest };
            let mut progress = Progress::default();
            for (at, value) in values.iter().enumerate() {
                if at == saved_at {
                    progress = serde_json::from_str(&serde_json::to_string(&progress).unwrap()).unwrap();
                }
                progress = progress.after(goal, at as u64, *value);
            }
            let sign = if highest { 1.0 } else { -1.0 };
            let most = values.iter().map(|value| sign * value).fold(f64::MIN, f64::max);
            let first = values.iter().position(|value| sign * value == most).unwrap();
            prop_assert_eq!(progress.best, Some(Best { step: first as u64, value: values[first] }));
            prop_assert_eq!(progress.without_improvement, (values.len() - 1 - first) as u64);
        }
    }
}
