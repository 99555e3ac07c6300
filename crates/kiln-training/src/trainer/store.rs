//! Steps of a run whose parameters are in a store. After each step the store is the run: values, optimizer state, buffers and position.

use std::path::Path;

use burn::module::{Module, ParamGroup};
use burn::store::ModuleRecord;
use burn::tensor::Bytes;
use kiln_checkpointing::Streamed;
use kiln_recovery::{AttemptOutcome, attempt, reclaim};

use super::resume::load_error;
use super::save::SavedState;
use super::trainer::Trainer;
use crate::checkpoints::{StoredValues, load_stored, verify};
use crate::error::Error;
use crate::task::Task;
use crate::transaction::{Apply, Attempted, Boundary, Decided, Lost, StepReport, StoreConfig, TRIES, Waiting};

impl<T: Task> Trainer<T> {
    /// The store of the parameters of a run that streams blocks. The blocks of [`model`](Self::model) that are streamed have no values:
    /// [`Streamed::filled`] brings them in.
    pub fn streamed(&self) -> Option<&Streamed> {
        self.run.streamed.as_ref()
    }

    /// The values of the parameters that are in the store, to write [`model`](Self::model) to a file without having them in memory at once.
    /// Empty for a run without a store.
    pub fn stored_values(&self) -> StoredValues {
        let directory = match &self.store {
            Some(StoreConfig::Directory(directory)) => Some(directory.as_path()),
            _ => None,
        };
        let streamed = self.run.streamed.as_ref();
        streamed.map(|streamed| StoredValues::of(streamed, &self.run.model, directory)).unwrap_or_default()
    }

    /// Applies an attempt that succeeded. The update writes next versions into the store, and the commit makes them current together with
    /// the position: all of the step or nothing.
    ///
    /// # Errors
    /// [`Error::NotFinite`]; [`Error::Checkpointing`] if the store fails, [`Error::Memory`] if memory ran out for longer than the patience.
    /// Everything is then unchanged, except that after a commit the new values may still have to be read.
    pub(super) fn commit_in_store(
        &mut self,
        streamed: &Streamed,
        attempted: Attempted,
        lost: Lost,
    ) -> Result<StepReport, Error> {
        let (scaler, state) = (self.run.scaler.clone(), self.run.state);
        let Apply { prepared, statistics, rate, mut report } = match self.run.decide(attempted, lost)? {
            Decided::Apply(apply) => apply,
            Decided::Skip(report) => {
                self.run.state = state.after_step(true);
                return Ok(report);
            }
        };
        let run = &self.run;
        let mut waiting = Waiting::after(lost.waited, self.recovery.as_mut());
        let update = || {
            run.at(Boundary::Update)?;
            Ok(streamed.update(&run.model, &run.optimizer, rate.clone(), prepared.factor())?)
        };
        let mut tries = 1;
        let updated = loop {
            match attempt(&run.settings.device, update, |(), _| {}) {
                AttemptOutcome::Failed(failure) if tries < TRIES || waiting.for_memory(&failure) => {
                    tracing::warn!("step {}: {failure} while parameters were updated in the store", report.step);
                    reclaim(&run.settings.device);
                    report.failures += 1;
                    tries += 1;
                }
                AttemptOutcome::Failed(failure) => break Err(Error::Memory(failure)),
                AttemptOutcome::Other(error) => break Err(error),
                AttemptOutcome::Done(()) => break Ok(()),
            }
        };
        let committed = updated.and_then(|()| {
            statistics.commit(&self.run.model);
            self.run.state = state.after_step(false);
            self.keep_in_store(streamed, !statistics.is_empty())
        });
        if let Err(error) = committed {
            statistics.restore(&self.run.model);
            (self.run.scaler, self.run.state) = (scaler, state);
            return Err(error);
        }
        self.stale = true;
        self.refresh()?;
        Ok(report)
    }

    /// Reads the values that a commit has changed, unless that is done.
    pub(super) fn refresh(&mut self) -> Result<(), Error> {
        if let Some(streamed) = self.run.streamed.as_ref().filter(|_| self.stale) {
            self.run.model = streamed.refreshed(self.run.model.clone())?;
            self.stale = false;
        }
        Ok(())
    }

    /// Commits the store, with the position of the run and, if they have changed, its buffers.
    fn keep_in_store(&self, streamed: &Streamed, buffers: bool) -> Result<(), Error> {
        let fail = |reason: &dyn std::fmt::Display| {
            let path = "the position of the run".into();
            Error::from(kiln_checkpointing::Error::Store { path, reason: reason.to_string() })
        };
        if buffers {
            // `valid` folds the running statistics of all threads into the value that is recorded.
            let _ = self.run.model.valid();
            let record = self.run.model.clone().into_record_group(self.outside(streamed));
            streamed.write_rest(&record.into_bytes().map_err(|e| fail(&e))?)?;
        }
        let note = serde_json::to_string(&self.saved_state()).map_err(|e| fail(&e))?;
        Ok(streamed.commit(&note)?)
    }

    /// The buffers of the model, and the parameters that are not trained.
    fn outside(&self, streamed: &Streamed) -> ParamGroup {
        ParamGroup::all().exclude(ParamGroup::from_ids(streamed.ids()))
    }

    /// Loads the checkpoint `path` into the store: all of it or nothing. With `saved`, the run takes its position too.
    pub(super) fn load_in_store(
        &mut self,
        streamed: &Streamed,
        path: &Path,
        saved: Option<SavedState>,
    ) -> Result<(), Error> {
        verify(path).map_err(|fault| load_error(path, fault.to_string()))?;
        let model = self.run.model.valid().train();
        let before = (self.saved_state(), self.saved, self.samples, self.batches, self.run.settings.total_steps);
        streamed.discard();
        // Clones share running statistics; `valid` makes new ones.
        let read = load_stored(streamed, self.run.model.valid().train(), path);
        let loaded = read.map_err(|reason| load_error(path, reason)).and_then(|model| {
            self.run.model = model;
            if let Some(saved) = saved {
                let (scaler, saved) = self.take_sizes(saved).map_err(|reason| load_error(path, reason))?;
                (self.run.state, self.run.scaler) = (saved.state, scaler);
                self.saved = saved.state.step;
                self.take_position(&saved);
            }
            self.keep_in_store(streamed, true)
        });
        if let Err(error) = loaded {
            let (saved, at, samples, batches, total) = before;
            let (scaler, saved) = self.take_sizes(saved).map_err(|reason| load_error(path, reason))?;
            (self.run.model, self.run.state, self.run.scaler) = (model, saved.state, scaler);
            self.take_position(&saved);
            (self.saved, self.samples, self.batches, self.run.settings.total_steps) = (at, samples, batches, total);
            return Err(error);
        }
        self.stale = true;
        self.refresh()
    }

    /// Goes on with the run that the store has. A store that was made now has none.
    pub(super) fn go_on_in_store(&mut self) -> Result<(), Error> {
        let Some(streamed) = self.run.streamed.clone() else { return Ok(()) };
        let note = streamed.note();
        if note.is_empty() {
            // What is frozen does not come from the seed alone.
            return self.keep_in_store(&streamed, true);
        }
        let fail = |reason: String| {
            Error::from(kiln_checkpointing::Error::StoreMismatch {
                reason: format!("it is not that of this run: {reason}"),
            })
        };
        let saved: SavedState = serde_json::from_str(&note).map_err(|e| fail(e.to_string()))?;
        self.compare_all(&saved).map_err(fail)?;
        if let Some(rest) = streamed.rest()? {
            let record = ModuleRecord::from_bytes(Bytes::from_bytes_vec(rest)).map_err(|e| fail(e.to_string()))?;
            let model = self.run.model.clone().try_load_record(record.allow_partial(true));
            self.run.model = model.map_err(|e| fail(e.to_string()))?;
        }
        let (scaler, saved) = self.take_sizes(saved).map_err(fail)?;
        (self.run.state, self.run.scaler) = (saved.state, scaler);
        self.take_position(&saved);
        Ok(())
    }
}
