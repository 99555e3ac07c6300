//! The events of a run, and when a run evaluates, saves and ends.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::transaction::StepReport;

/// Metrics of a model on a data set.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Evaluation {
    /// Steps of the run so far.
    pub step: u64,
    /// Epochs that the run has finished.
    pub epochs: u64,
    /// Name and value of each metric.
    pub metrics: Vec<(&'static str, f64)>,
}

/// An event of a run. Events come in order.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A step was taken.
    Step(StepReport),
    /// The model was evaluated.
    Evaluated(Evaluation),
    /// A checkpoint is about to be written. It includes the effects of all events so far, so that a log of events should be flushed to
    /// disk now.
    Saving,
    /// A checkpoint is on disk.
    Saved(PathBuf),
}

/// The end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Finish {
    /// All steps were taken.
    Complete,
    /// The observer asked to stop; the run is saved if it has checkpoints.
    Stopped,
    /// The metric that the run is judged by has not improved for as long as
    /// [`BestConfig::with_patience`](crate::BestConfig::with_patience) says; the run is saved if it has checkpoints.
    EndedEarly,
}

/// When a run evaluates and saves, in addition to the end of every epoch and of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Intervals {
    evaluate: u64,
    save: u64,
}

impl Intervals {
    /// Also evaluates the model every `steps` steps; 0: only at the end of epochs.
    #[must_use]
    pub fn with_evaluation(self, steps: u64) -> Self {
        Self { evaluate: steps, ..self }
    }

    /// Also saves a checkpoint every `steps` steps; 0: only at the end of epochs.
    #[must_use]
    pub fn with_checkpoint(self, steps: u64) -> Self {
        Self { save: steps, ..self }
    }

    pub(super) fn evaluates_at(self, step: u64) -> bool {
        self.evaluate > 0 && step.is_multiple_of(self.evaluate)
    }

    pub(super) fn saves_at(self, step: u64) -> bool {
        self.save > 0 && step.is_multiple_of(self.save)
    }
}

/// The length of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum RunLength {
    /// A number of steps. A batch without a readable sample does not count.
    Steps(u64),
    /// A number of passes over the data. A batch without a readable sample counts.
    Epochs(u64),
}

impl RunLength {
    /// The length in steps of a run whose data has `batches` batches an epoch.
    pub(super) fn steps(self, batches: usize) -> u64 {
        match self {
            Self::Steps(steps) => steps,
            Self::Epochs(epochs) => epochs.saturating_mul(batches as u64),
        }
    }
}
