//! The events of a run, and when a run evaluates, saves and ends.

use std::path::PathBuf;

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
    /// A checkpoint is about to be written. The events so far belong to it, and a record of them should be as durable.
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
    /// The metric that the run is judged by got no better for as long as [`BestConfig::with_patience`](crate::BestConfig::with_patience)
    /// says; the run is saved if it has checkpoints.
    EndedEarly,
}

/// When a run evaluates and saves, besides the end of every epoch and of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Every {
    evaluate: u64,
    save: u64,
}

impl Every {
    /// At the end of epochs only.
    pub fn epoch() -> Self {
        Self::default()
    }

    /// Evaluates the model every `steps` steps as well; 0: at the end of epochs only.
    #[must_use]
    pub fn with_evaluation(self, steps: u64) -> Self {
        Self { evaluate: steps, ..self }
    }

    /// Saves a checkpoint every `steps` steps as well; 0: at the end of epochs only.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunLength {
    /// So many steps. A batch of which no sample could be read is none.
    Steps(u64),
    /// So many passes over the data. A batch of which no sample could be read counts.
    Epochs(u64),
}

impl RunLength {
    /// The length in steps of a run over data with `batches` batches an epoch.
    pub(super) fn steps(self, batches: usize) -> u64 {
        match self {
            Self::Steps(steps) => steps,
            Self::Epochs(epochs) => epochs.saturating_mul(batches as u64),
        }
    }
}
