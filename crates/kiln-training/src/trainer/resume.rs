//! Resuming a run from a checkpoint, and starting another run from one.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::{ModuleOptimizer, OptimizerRecord};
use burn::store::ModuleRecord;
use burn::tensor::{Bytes, Tensor};
use kiln_compression::placeholders;
use kiln_precision::LossScaler;
use kiln_recovery::{AttemptOutcome, attempt};

use super::attach::other_attachment;
use super::save::SavedState;
use super::trainer::Trainer;
use crate::checkpoints::{MANIFEST, OPTIMIZER, STATE, load_model_by};
use crate::error::Error;
use crate::optimizer::OptimizerGroups;
use crate::replicas::part;
use crate::task::Task;
use crate::transaction::StoreConfig;

/// The purpose of reading a checkpoint.
#[derive(Clone, Copy, PartialEq)]
enum Purpose {
    /// The run continues.
    Resume,
    /// Another run starts from its model and its optimizer's state.
    Start,
}

impl<T: Task> Trainer<T> {
    /// Loads the newest whole checkpoint into the run, and returns its path. A run that went on from its store stays as it is, unless a
    /// checkpoint is newer; the path is then that of the store. Damaged checkpoints are skipped with a warning. Returns
    /// `None` if there is no checkpoint. All replicas of a run must call it, and must find the same checkpoint.
    ///
    /// # Errors
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
    /// # Errors
    /// [`Error::Load`] for a checkpoint that is damaged, of another model, of another optimizer, or with other attachments to its
    /// parameters; [`Error::Memory`] and [`Error::Lost`] if the device has no room for it; [`Error::Replica`] if another replica failed.
    pub fn start_from(&mut self, path: &Path) -> Result<(), Error> {
        let group = self.run.group.clone();
        group.tell_end(|| group.all(self.start_here(path)))
    }

    fn start_here(&mut self, path: &Path) -> Result<(), Error> {
        let saved = self.saved(path)?;
        if let Some(streamed) = self.run.streamed.clone() {
            self.compare_optimizer(&saved, self.run.groups.description()).map_err(|reason| load_error(path, reason))?;
            return self.load_in_store(&streamed, path, None);
        }
        let (model, groups, optimizer) = self.loaded(path, &saved, Purpose::Start)?;
        let (state, scaler) = (self.run.state, self.run.scaler.clone());
        self.run.restore(model, (groups, optimizer), state, scaler);
        Ok(())
    }

    fn resume_here(&mut self) -> Result<Option<PathBuf>, Error> {
        let checkpoints = self.checkpoints.directory.clone().ok_or(Error::NoCheckpoints)?;
        if let (Some(StoreConfig::Directory(store)), step @ 1..) = (&self.store, self.state().step) {
            // The store has the run after its last step.
            let (store, newest) = (store.clone(), checkpoints.newest_step()?.unwrap_or(0));
            if newest <= step {
                self.saved = newest;
                // A checkpoint is written when its step is finished, evaluation included.
                if let (true, Ok(saved)) = (newest == step, self.saved(&checkpoints.path_of(step))) {
                    (self.run.state, self.progress) = (saved.state, saved.progress);
                }
                return Ok(Some(store));
            }
        }
        checkpoints.resume(|path| self.load(path))
    }

    /// The state in the checkpoint `path`, which must be of a run with the same attachments to its parameters.
    fn saved(&self, path: &Path) -> Result<SavedState, Error> {
        let fail = |reason: String| load_error(path, reason);
        let state = fs::read(path.join(STATE)).map_err(|e| fail(format!("{STATE}: {e}")))?;
        let saved: SavedState = serde_json::from_slice(&state).map_err(|e| fail(format!("{STATE}: {e}")))?;
        saved.state.check().map_err(|reason| fail(format!("{STATE}: {reason}")))?;
        self.compare_attachments(&saved).map_err(fail)?;
        Ok(saved)
    }

    /// Refuses a run with other attachments to its parameters.
    fn compare_attachments(&self, saved: &SavedState) -> Result<(), String> {
        let attached = saved.attached.as_ref().and_then(|was| other_attachment(was, &self.run.attached));
        attached.map_or(Ok(()), Err)
    }

    /// Refuses a run with another position, other attachments, another optimizer, other data or another loss scaling.
    pub(super) fn compare_all(&self, saved: &SavedState) -> Result<(), String> {
        saved.state.check()?;
        self.compare_attachments(saved)?;
        self.compare_optimizer(saved, self.run.groups.description())?;
        self.compare(saved)
    }

    fn load(&mut self, path: &Path) -> Result<(), Error> {
        let fail = |reason: String| load_error(path, reason);
        let saved = self.saved(path)?;
        if let Some(streamed) = self.run.streamed.clone() {
            self.compare_all(&saved).map_err(fail)?;
            return self.load_in_store(&streamed, path, Some(saved));
        }
        // The run stays as it is until all of the checkpoint is on the device.
        let (model, groups, optimizer) = self.loaded(path, &saved, Purpose::Resume)?;
        let (scaler, saved) = self.take_sizes(saved).map_err(|e| fail(format!("{STATE}: {e}")))?;
        self.run.restore(model, (groups, optimizer), saved.state, scaler);
        self.saved = saved.state.step;
        self.take_position(&saved);
        Ok(())
    }

    /// Takes what is known about sizes that fit, and returns the loss scale.
    pub(super) fn take_sizes(&mut self, mut saved: SavedState) -> Result<(LossScaler, SavedState), String> {
        let mut scaler = self.run.scaler.clone();
        if let Some(saved) = &saved.scaler {
            scaler.restore(saved.state).map_err(|e| e.to_string())?;
        }
        let sizes = saved.recovery.take().filter(|_| !self.checkpoints.fresh_sizes);
        if let (Some(recovery), Some(state)) = (self.recovery_mut(), sizes) {
            recovery.restore(state).map_err(|e| e.to_string())?;
        }
        Ok((scaler, saved))
    }

    /// Takes the place in the data and the progress of a saved run.
    pub(super) fn take_position(&mut self, saved: &SavedState) {
        self.edited = saved.edited;
        self.progress = saved.progress;
        self.samples = saved.samples.filter(|samples| *samples > 0).or(self.samples);
        self.batches = saved.batches.or(self.batches);
        let known = saved.total_steps.filter(|_| !self.checkpoints.other_length);
        self.run.settings.total_steps = self.run.settings.total_steps.or(known);
    }

    /// Model and optimizer of a checkpoint, on the run's device.
    fn loaded(
        &self,
        path: &Path,
        saved: &SavedState,
        purpose: Purpose,
    ) -> Result<(T::Model, OptimizerGroups, ModuleOptimizer), Error> {
        let fail = |reason: String| load_error(path, reason);
        let device = self.device().clone();
        let plain = device.clone().inner();
        let load = || {
            // Clones share running statistics, including those that a thread has not folded in yet; `valid` makes new ones.
            let model = self.model().valid().train();
            let (in_processes, narrows) = (self.run.group.has_others(), !placeholders(&model).is_empty());
            let model = load_model_by(model, path, |file| {
                let record = match in_processes {
                    true => ModuleRecord::from_bytes(in_memory(file)?),
                    false => ModuleRecord::load(file),
                };
                let record = record.map_err(|e| e.to_string())?;
                // Beside codes the dtypes of other matrices are those of the run's precision, which may be another one.
                Ok(if narrows { record.cast_to_module_dtype() } else { record })
            })?;
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

pub(super) fn load_error(path: &Path, reason: String) -> Error {
    Error::Load { path: path.to_owned(), reason }
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
