//! Saving a run.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

use burn::module::Module;
use burn::tensor::Bytes;
use kiln_precision::{ScalerState, Scaling};
use kiln_recovery::{Failure, Recovery, RecoveryState};
use serde::{Deserialize, Serialize};

use super::trainer::Trainer;
use crate::checkpoints::{Checkpoints, MODEL, OPTIMIZER, STATE, record_of, save_stored};
use crate::error::Error;
use crate::optimizer::StateRecord;
use crate::progress::Progress;
use crate::replicas::{gathered, whole};
use crate::state::RunState;
use crate::task::Task;

/// A loss scale and its rules, which are part of the run.
#[derive(Serialize, Deserialize)]
pub(super) struct SavedScaler {
    pub(super) state: ScalerState,
    pub(super) scaling: Scaling,
}

/// The position of the run, and the settings that must not change on a resume.
#[derive(Serialize, Deserialize)]
pub(super) struct SavedState {
    pub(super) state: RunState,
    #[serde(default)]
    pub(super) total_steps: Option<u64>,
    #[serde(default)]
    pub(super) samples: Option<usize>,
    /// Batches of an epoch; the position refers to them.
    #[serde(default)]
    pub(super) batches: Option<usize>,
    #[serde(default)]
    pub(super) scaler: Option<SavedScaler>,
    #[serde(default)]
    pub(super) recovery: Option<RecoveryState>,
    /// The description of the optimizer's settings. Checkpoints of version 0.1 hold the settings themselves, which are not compared.
    #[serde(default)]
    pub(super) optimizer: Option<serde_json::Value>,
    /// The settings of the attachments to the parameters.
    #[serde(default)]
    pub(super) attached: Option<String>,
    /// The step before which the model was last edited: a run that ended with an error may have been saved after its edit.
    #[serde(default)]
    pub(super) edited: Option<u64>,
    #[serde(default)]
    pub(super) progress: Progress,
}

impl<T: Task> Trainer<T> {
    /// Saves the current state of the run to its checkpoints. With several replicas the first one writes, and the others return the path
    /// at once. If the optimizer's state is divided among them, all must call it.
    ///
    /// # Errors
    /// [`Error::NoCheckpoints`], [`Error::Save`]; existing checkpoints stay. [`Error::Unfinished`] in the middle of an update.
    pub fn save(&self) -> Result<PathBuf, Error> {
        self.save_to(self.checkpoints.directory.as_ref().ok_or(Error::NoCheckpoints)?)
    }

    /// Saves the current state of the run to `checkpoints`.
    ///
    /// # Errors
    /// Those of [`save`](Self::save).
    pub fn save_to(&self, checkpoints: &Checkpoints) -> Result<PathBuf, Error> {
        self.run.ready()?; // half an update must not be saved
        let step = self.run.state.step;
        let optimizer = self.whole_optimizer(checkpoints)?;
        if !self.run.group.is_first() {
            return Ok(checkpoints.path_of(step));
        }
        checkpoints.save(step, |path| {
            // burn panics if the device cannot return the data to be written.
            catch_unwind(AssertUnwindSafe(|| self.write(path, optimizer))).unwrap_or_else(|panic| {
                match Failure::from_panic(panic.as_ref()) {
                    Some(failure) => Err(failure.to_string()),
                    None => resume_unwind(panic),
                }
            })
        })
    }

    /// Works as [`save`](Self::save), and makes all replicas wait until the first one has the checkpoint on disk. It succeeds on all
    /// replicas or on none.
    ///
    /// # Errors
    /// Those of [`save`](Self::save), and [`Error::Replica`] for those of another replica.
    pub(super) fn save_on_all(&self) -> Result<PathBuf, Error> {
        self.run.group.all(self.save())
    }

    /// Where [`fit`](Self::fit) saves to.
    pub fn checkpoints(&self) -> Option<&Checkpoints> {
        self.checkpoints.directory.as_ref()
    }

    /// Makes [`fit`](Self::fit) save to `checkpoints` from now on.
    pub fn set_checkpoints(&mut self, checkpoints: Checkpoints) {
        self.checkpoints.directory = Some(checkpoints);
    }

    /// On the first replica, the optimizer's state from all replicas if it is divided among them. Otherwise `None`.
    fn whole_optimizer(&self, checkpoints: &Checkpoints) -> Result<Option<Bytes>, Error> {
        let group = &self.run.group;
        let Some(communicator) = group.communicator().filter(|_| group.shards_optimizer) else { return Ok(None) };
        let fail = |reason: String| Error::Save { path: checkpoints.path_of(self.run.state.step), reason };
        let own = group.caught(|| self.run.optimizer.into_bytes().map_err(|e| fail(e.to_string())));
        let parts = gathered(communicator, &group.all(own)?)?;
        parts.map(|parts| whole(parts).map_err(fail)).transpose()
    }

    fn write(&self, path: &Path, optimizer: Option<Bytes>) -> Result<(), String> {
        let run = &self.run;
        // `valid` folds the running statistics of all threads into the value that is recorded.
        let _ = run.model.valid();
        if let Some(streamed) = &run.streamed {
            save_stored(streamed, &run.model, path)?;
        } else {
            record_of(run.model.clone()).save(path.join(MODEL)).map_err(|e| e.to_string())?;
            let optimizer = match optimizer {
                Some(bytes) => StateRecord::read(bytes)?,
                None => StateRecord::of_optimizer(&run.optimizer, &run.model)?,
            };
            optimizer.writer().write_to_file(path.join(OPTIMIZER)).map_err(|e| e.to_string())?;
        }
        let text = serde_json::to_vec_pretty(&self.saved_state()).map_err(|e| e.to_string())?;
        fs::write(path.join(STATE), text).map_err(|e| e.to_string())
    }

    /// The position of the run and its settings.
    pub(super) fn saved_state(&self) -> SavedState {
        let run = &self.run;
        SavedState {
            state: run.state,
            total_steps: run.settings.total_steps,
            samples: self.samples,
            batches: self.batches,
            scaler: Some(SavedScaler { state: run.scaler.state(), scaling: run.scaler.scaling() }),
            recovery: self.recovery().map(Recovery::state),
            optimizer: run.groups.description().map(Into::into),
            attached: Some(run.attached.clone()),
            edited: self.edited,
            progress: self.progress,
        }
    }
}
