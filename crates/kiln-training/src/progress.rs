//! Whether a run still improves: its best evaluation so far, and when to end early.

use serde::{Deserialize, Serialize};

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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BestConfig {
    metric: String,
    goal: Goal,
    patience: Option<u64>,
}

impl BestConfig {
    /// Judges by one of the metrics that an evaluation reports.
    pub fn new(metric: impl Into<String>, goal: Goal) -> Self {
        Self { metric: metric.into(), goal, patience: None }
    }

    /// Ends the run after this many evaluations in a row without a better value. `None`: never.
    #[must_use]
    pub fn with_patience(self, evaluations: impl Into<Option<u64>>) -> Self {
        Self { patience: evaluations.into(), ..self }
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
