//! The best checkpoint of a run, and whether the run ends early.

use std::fs;
use std::io;
use std::path::Path;

use super::events::Evaluation;
use super::trainer::Trainer;
use crate::checkpoints::STATE;
use crate::error::Error;
use crate::task::Task;

impl<T: Task> Trainer<T> {
    /// If the run is judged by a metric, notes an evaluation in its progress. Returns whether it is the best so far.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] if the evaluation lacks the metric.
    pub(super) fn judge(&mut self, evaluation: &Evaluation) -> Result<bool, Error> {
        let Some(config) = &self.checkpoints.best else { return Ok(false) };
        let value = evaluation.metrics.iter().find(|(name, _)| *name == config.metric()).map(|(_, value)| *value);
        let Some(value) = value else {
            let (field, value) = ("metric that the run is judged by", config.metric().to_owned());
            return Err(Error::InvalidSetting { name: field, value, expected: "one that the task evaluates" });
        };
        self.progress = self.progress.judged(config, evaluation.step, value);
        Ok(self.progress.improved_at(evaluation.step))
    }

    /// Whether the learning rate is reduced after the evaluation that came last.
    pub(super) fn reduces(&self) -> bool {
        self.checkpoints.best.as_ref().is_some_and(|config| self.progress.reduces(config))
    }

    /// Whether the run ends here because it has stopped improving.
    pub(super) fn is_over(&self) -> bool {
        self.checkpoints.best.as_ref().is_some_and(|config| self.progress.is_over(config.patience()))
    }

    /// Makes the checkpoint of this step, which is on disk, the best one. With several replicas, only the first one writes.
    ///
    /// # Errors
    /// [`Error::Save`], and [`Error::Replica`] if another replica failed to save.
    pub(super) fn keep_best(&self) -> Result<(), Error> {
        let Some(checkpoints) = &self.checkpoints.directory else { return Ok(()) };
        let keep = || checkpoints.keep_best(self.state().step).map(|_| ());
        let group = &self.run.group;
        group.all(if group.is_first() { keep() } else { Ok(()) })
    }

    /// Makes the best checkpoint and the run consistent after a resume. A process that was killed between saving a checkpoint and marking
    /// it as the best has left an older best one. A run that went back has left a best one of steps that it has not taken yet.
    ///
    /// # Errors
    /// [`Error::Save`], and [`Error::Load`] if the step of the best checkpoint cannot be read.
    pub(super) fn check_best(&mut self) -> Result<(), Error> {
        let (Some(_), Some(checkpoints), Some(best)) =
            (&self.checkpoints.best, &self.checkpoints.directory, self.progress.best)
        else {
            return Ok(());
        };
        let path = checkpoints.best_path();
        if path.map_or(Ok(None), |path| step_of(&path))? == Some(best.step) {
            return Ok(());
        }
        if !checkpoints.has(best.step) {
            tracing::warn!(
                "the best checkpoint, of step {}, is lost; the next evaluation counts as the best",
                best.step
            );
            self.progress = self.progress.without_best();
            return Ok(());
        }
        match self.run.group.is_first() {
            true => checkpoints.keep_best(best.step).map(|_| ()),
            false => Ok(()),
        }
    }
}

/// The step of the checkpoint `path`, from its state. `None` if it is damaged.
///
/// # Errors
/// [`Error::Load`] if the state exists and cannot be read.
fn step_of(path: &Path) -> Result<Option<u64>, Error> {
    match fs::read(path.join(STATE)) {
        Ok(text) => {
            let state: Option<serde_json::Value> = serde_json::from_slice(&text).ok();
            Ok(state.and_then(|state| state["state"]["step"].as_u64()))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::Load { path: path.to_owned(), reason: format!("{STATE}: {error}") }),
    }
}
