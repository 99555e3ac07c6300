//! The best checkpoint of a run, and whether the run ends early.

use std::fs;
use std::io;
use std::path::Path;

use super::events::Evaluation;
use super::run::Trainer;
use crate::checkpoints::STATE;
use crate::error::Error;
use crate::task::Task;

impl<T: Task> Trainer<T> {
    /// Notes an evaluation in the progress of a run that is judged. Returns whether it is the best so far.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] when the evaluation lacks the metric.
    pub(super) fn judge(&mut self, evaluation: &Evaluation) -> Result<bool, Error> {
        let Some(config) = &self.best else { return Ok(false) };
        let value = evaluation.metrics.iter().find(|(name, _)| *name == config.metric()).map(|(_, value)| *value);
        let Some(value) = value else {
            let (field, value) = ("metric that the run is judged by", config.metric().to_owned());
            return Err(Error::InvalidSetting { field, value, expected: "one that the task evaluates" });
        };
        self.progress = self.progress.judged(config, evaluation.step, value);
        Ok(self.progress.improved_at(evaluation.step))
    }

    /// Whether the run ends here because it gets no better.
    pub(super) fn is_over(&self) -> bool {
        self.best.as_ref().is_some_and(|config| self.progress.is_over(config.patience()))
    }

    /// Makes the checkpoint of this step, which is on disk, the best one. Of several replicas the first one writes.
    ///
    /// # Errors
    /// [`Error::Save`], and [`Error::Replica`] for that of another replica.
    pub(super) fn keep_best(&self) -> Result<(), Error> {
        let Some(checkpoints) = &self.checkpoints else { return Ok(()) };
        let keep = || checkpoints.keep_best(self.state().step).map(|_| ());
        match &self.run.replicas {
            Some(replicas) if replicas.is_first() => replicas.all(keep()),
            Some(replicas) => replicas.all(Ok(())),
            None => keep(),
        }
    }

    /// Brings the best checkpoint and the run together after the run was resumed. A process that was killed between a checkpoint and the
    /// best one has left an older best one; a run that went back has left one of steps that it has not taken yet.
    ///
    /// # Errors
    /// [`Error::Save`], and [`Error::Load`] when it cannot be found out which step the best one is of.
    pub(super) fn check_best(&mut self) -> Result<(), Error> {
        let (Some(_), Some(checkpoints), Some(best)) = (&self.best, &self.checkpoints, self.progress.best) else {
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
        match self.run.replicas.as_ref().is_none_or(|replicas| replicas.is_first()) {
            true => checkpoints.keep_best(best.step).map(|_| ()),
            false => Ok(()),
        }
    }
}

/// The step of the checkpoint `path`, as its state says; none of one that is damaged.
///
/// # Errors
/// [`Error::Load`] when the state is there and cannot be read.
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
