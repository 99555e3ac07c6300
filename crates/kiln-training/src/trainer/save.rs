//! Saving a run and resuming it.

use std::collections::HashSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::{ModuleOptimizer, OptimizerRecord};
use burn::store::ModuleRecord;
use burn::tensor::{Bytes, Tensor};
use kiln_precision::{ScalerState, Scaling};
use kiln_recovery::{AttemptOutcome, Failure, Recovery, RecoveryState, attempt};
use serde::{Deserialize, Serialize};

use super::attach::other_attachment;
use super::trainer::Trainer;
use crate::checkpoints::{Checkpoints, MANIFEST, MODEL, OPTIMIZER, STATE, load_model, load_model_by};
use crate::error::Error;
use crate::optimizer::OptimizerGroups;
use crate::progress::Progress;
use crate::replicas::{gathered, part, whole};
use crate::state::RunState;
use crate::task::Task;

/// A loss scale and its rules, which are part of the run.
#[derive(Serialize, Deserialize)]
struct SavedScaler {
    state: ScalerState,
    scaling: Scaling,
}

/// The position of the run, and the settings that must not change on a resume.
#[derive(Serialize, Deserialize)]
struct SavedState {
    state: RunState,
    #[serde(default)]
    total_steps: Option<u64>,
    #[serde(default)]
    samples: Option<usize>,
    /// Batches of an epoch; the position refers to them.
    #[serde(default)]
    batches: Option<usize>,
    #[serde(default)]
    scaler: Option<SavedScaler>,
    #[serde(default)]
    recovery: Option<RecoveryState>,
    /// The description of the optimizer's settings. Checkpoints of version 0.1 hold the settings themselves, which are not compared.
    #[serde(default)]
    optimizer: Option<serde_json::Value>,
    /// The settings of the attachments to the parameters.
    #[serde(default)]
    attached: Option<String>,
    /// The step before which the model was last edited: a run that ended with an error may have been saved after its edit.
    #[serde(default)]
    edited: Option<u64>,
    #[serde(default)]
    progress: Progress,
}

/// The purpose of reading a checkpoint.
#[derive(Clone, Copy, PartialEq)]
enum Purpose {
    /// The run continues.
    Resume,
    /// Another run starts from its model and its optimizer's state.
    Start,
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

    /// Makes [`fit`](Self::fit) save to `checkpoints` from now on.
    pub fn set_checkpoints(&mut self, checkpoints: Checkpoints) {
        self.checkpoints.directory = Some(checkpoints);
    }

    /// Loads the newest whole checkpoint into the run, and returns its path. Damaged checkpoints are skipped with a warning. Returns
    /// `None` if there is no checkpoint. All replicas of a run must call it, and must find the same checkpoint.
    ///
    /// [`Error::NoCheckpoints`]; [`Error::Load`] if there are checkpoints and none can be used; [`Error::Memory`] and [`Error::Lost`] if
    /// the device has no room for a usable one; [`Error::Replica`] if another replica failed, or found another checkpoint.
    pub fn resume(&mut self) -> Result<Option<PathBuf>, Error> {
        let group = self.run.group.clone();
        group.tell_end(|| {
            let resumed = group.all(self.resume_here())?;
            let name =
                resumed.as_ref().and_then(|path| path.file_name()).map(|name| name.to_string_lossy().into_owned());
            let manifest = resumed.as_ref().and_then(|path| fs::read(path.join(MANIFEST)).ok());
            let facts = [
                ("newest checkpoint", name.unwrap_or_else(|| "none".into())),
                (
                    "checksum of the checkpoint's manifest",
                    format!("{:08x}", crc32fast::hash(&manifest.unwrap_or_default())),
                ),
            ];
            group.check_equal(&facts)?;
            group.all(self.check_best())?;
            Ok(resumed)
        })
    }

    /// Starts a new run from the model and the optimizer's state in the checkpoint `path`. The position, the loss scale, the progress and
    /// the knowledge about sizes are those of a new run. All replicas of a run must call it. Parameters that this run does not train get
    /// no state.
    ///
    /// [`Error::Load`] for a checkpoint that is damaged, of another model, of another optimizer, or with other attachments to its
    /// parameters; [`Error::Memory`] and [`Error::Lost`] if the device has no room for it; [`Error::Replica`] if another replica failed.
    pub fn start_from(&mut self, path: &Path) -> Result<(), Error> {
        let group = self.run.group.clone();
        group.tell_end(|| group.all(self.start_here(path)))
    }

    fn start_here(&mut self, path: &Path) -> Result<(), Error> {
        let saved = self.saved(path)?;
        let (model, groups, optimizer) = self.loaded(path, &saved, Purpose::Start)?;
        let (state, scaler) = (self.run.state, self.run.scaler.clone());
        self.run.restore(model, (groups, optimizer), state, scaler);
        Ok(())
    }

    fn resume_here(&mut self) -> Result<Option<PathBuf>, Error> {
        let checkpoints = self.checkpoints.directory.clone().ok_or(Error::NoCheckpoints)?;
        checkpoints.resume(|path| self.load(path))
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
        run.model.clone().into_record().save(path.join(MODEL)).map_err(|e| e.to_string())?;
        let optimizer = match optimizer {
            Some(bytes) => OptimizerRecord::from_bytes(bytes),
            None => Ok(run.optimizer.to_record()),
        };
        optimizer.and_then(|record| record.save(path.join(OPTIMIZER))).map_err(|e| e.to_string())?;
        let saved = SavedState {
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
        };
        let text = serde_json::to_vec_pretty(&saved).map_err(|e| e.to_string())?;
        fs::write(path.join(STATE), text).map_err(|e| e.to_string())
    }

    /// The state in the checkpoint `path`, which must be of a run with the same attachments to its parameters.
    fn saved(&self, path: &Path) -> Result<SavedState, Error> {
        let fail = |reason: String| Error::Load { path: path.to_owned(), reason };
        let state = fs::read(path.join(STATE)).map_err(|e| fail(format!("{STATE}: {e}")))?;
        let saved: SavedState = serde_json::from_slice(&state).map_err(|e| fail(format!("{STATE}: {e}")))?;
        saved.state.check().map_err(|reason| fail(format!("{STATE}: {reason}")))?;
        let attached = saved.attached.as_ref().and_then(|was| other_attachment(was, &self.run.attached));
        if let Some(reason) = attached {
            return Err(fail(reason));
        }
        Ok(saved)
    }

    fn load(&mut self, path: &Path) -> Result<(), Error> {
        let fail = |reason: String| Error::Load { path: path.to_owned(), reason };
        let saved = self.saved(path)?;
        // The run stays as it is until all of the checkpoint is on the device.
        let (model, groups, optimizer) = self.loaded(path, &saved, Purpose::Resume)?;
        let mut scaler = self.run.scaler.clone();
        if let Some(saved) = saved.scaler {
            scaler.restore(saved.state).map_err(|e| fail(format!("{STATE}: {e}")))?;
        }
        let sizes = saved.recovery.filter(|_| !self.checkpoints.fresh_sizes);
        if let (Some(recovery), Some(state)) = (self.recovery_mut(), sizes) {
            recovery.restore(state).map_err(|e| fail(format!("{STATE}: {e}")))?;
        }
        self.run.restore(model, (groups, optimizer), saved.state, scaler);
        self.saved = saved.state.step;
        self.edited = saved.edited;
        self.progress = saved.progress;
        self.samples = saved.samples.filter(|samples| *samples > 0).or(self.samples);
        self.batches = saved.batches.or(self.batches);
        let known = saved.total_steps.filter(|_| !self.checkpoints.other_length);
        self.run.settings.total_steps = self.run.settings.total_steps.or(known);
        Ok(())
    }

    /// Model and optimizer of a checkpoint, on the run's device.
    fn loaded(
        &self,
        path: &Path,
        saved: &SavedState,
        purpose: Purpose,
    ) -> Result<(T::Model, OptimizerGroups, ModuleOptimizer), Error> {
        let fail = |reason: String| Error::Load { path: path.to_owned(), reason };
        let device = self.device().clone();
        let plain = device.clone().inner();
        let load = || {
            // Clones share running statistics, including those that a thread has not folded in yet; `valid` makes new ones.
            let model = self.model().valid().train();
            let model = match self.run.group.has_others() {
                true => load_model_by(model, path, |file| {
                    ModuleRecord::from_bytes(in_memory(file)?).map_err(|e| e.to_string())
                })?,
                false => load_model(model, path)?,
            };
            let model = match &self.staged {
                Some(staged) => staged.place(model),
                None => model,
            };
            let groups = (self.optimizer)(&model);
            self.compare_optimizer(saved, groups.description()).map_err(fail)?;
            if purpose == Purpose::Resume {
                self.compare(saved).map_err(fail)?;
            }
            let file = path.join(OPTIMIZER);
            let owned = self.run.group.owned(&model);
            let wanted = match purpose {
                Purpose::Resume => owned,
                // Parameters that were trained there and are frozen here would have a state that nothing needs.
                Purpose::Start => owned.or_else(|| Some(trained(&model))),
            };
            let record = match (wanted, self.run.group.has_others()) {
                (Some(wanted), _) => {
                    let all = in_memory(&file).map_err(fail)?;
                    OptimizerRecord::from_bytes(part(all, &wanted).map_err(fail)?)
                }
                (None, true) => OptimizerRecord::from_bytes(in_memory(&file).map_err(fail)?),
                (None, false) => OptimizerRecord::load(file),
            };
            let record = record.map_err(|e| fail(e.to_string()))?;
            let optimizer = groups.load(record, &model, &plain, false).map_err(fail)?;
            Ok((model, groups, optimizer))
        };
        // A device without room for the parameters fails here too.
        match attempt(&device, load, |(model, ..), probe| {
            probe.module(model);
        }) {
            AttemptOutcome::Done(loaded) => Ok(loaded),
            AttemptOutcome::Failed(failure) => Err(Error::Memory(failure)),
            AttemptOutcome::Other(error) => Err(error),
        }
    }

    /// Refuses a checkpoint of a run with another optimizer.
    fn compare_optimizer(&self, saved: &SavedState, optimizer: Option<&str>) -> Result<(), String> {
        match (saved.optimizer.as_ref().and_then(|saved| saved.as_str()), optimizer) {
            (Some(was), Some(is)) if was != is => Err(format!(
                "its optimizer is {was}, and this run has {is}: the settings have changed; resume with those of the checkpoint, or \
                     begin a new run from its model"
            )),
            _ => Ok(()),
        }
    }

    /// Refuses a checkpoint of a run with other data or another loss scaling.
    fn compare(&self, saved: &SavedState) -> Result<(), String> {
        let numbers = [
            ("samples", saved.samples.map(|samples| samples as u64), self.samples.map(|samples| samples as u64)),
            (
                "batches an epoch",
                saved.batches.map(|batches| batches as u64),
                self.batches.map(|batches| batches as u64),
            ),
            ("steps", saved.total_steps.filter(|_| !self.checkpoints.other_length), self.total_steps()),
        ];
        for (unit, was, is) in numbers {
            if let (Some(was), Some(is)) = (was.filter(|was| *was > 0), is)
                && was != is
            {
                return Err(format!(
                    "it belongs to a run of {was} {unit}, and this one has {is}: the data has changed, or the length of the run"
                ));
            }
        }
        let scaling = self.run.scaler.scaling();
        if let Some(saved) = saved.scaler.as_ref().filter(|saved| saved.scaling != scaling) {
            let was = saved.scaling;
            return Err(format!(
                "its loss scaling is {was:?}, and this run has {scaling:?}: the precision has changed"
            ));
        }
        Ok(())
    }
}

/// The trained parameters of `model`.
fn trained(model: &impl Module) -> HashSet<ParamId> {
    struct Trained(HashSet<ParamId>);
    impl ModuleVisitor for Trained {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if param.is_require_grad() {
                self.0.insert(param.id);
            }
        }
    }
    let mut trained = Trained(HashSet::new());
    model.visit(&mut trained);
    trained.0
}

/// Reads the bytes of a file at once. burn would read each tensor when it is first used. By then the first replica may have replaced the
/// file by a new checkpoint of the same step.
fn in_memory(file: &Path) -> Result<Bytes, String> {
    fs::read(file).map(Bytes::from_bytes_vec).map_err(|e| format!("{}: {e}", file.display()))
}
