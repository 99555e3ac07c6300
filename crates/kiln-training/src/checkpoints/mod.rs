//! The directory of a run's checkpoints: saved atomically, the newest few of them.

mod divided;
mod joined;
mod manifest;
mod stored;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use burn::module::{Module, ModuleVisitor, Param, ParamGroup};
use burn::store::ModuleRecord;
use burn::tensor::{Bool, Int, Tensor};
use kiln_compression::placeholders;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use manifest::{FILES, Fault, seal, sync};

pub(crate) use manifest::{MANIFEST, MODEL, OPTIMIZER, STATE, verify};
pub use stored::StoredValues;
pub(crate) use stored::{load_stored, save_stored};

/// The name of the best checkpoint.
const BEST: &str = "best";
/// Suffix of a checkpoint's name while another checkpoint of the same step takes its place.
const ASIDE: &str = ".old";
/// Suffix of a checkpoint that is set aside because the run resumed from an earlier step.
const LATER: &str = ".later";

/// The checkpoints of a run: one directory each, named after its step, the newest `keep` of them.
///
/// A checkpoint is written under another name, flushed to disk, and renamed when it is whole. Its manifest holds the length and
/// CRC-32 of every file, so that damage that comes later is found as well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoints {
    directory: PathBuf,
    keep: usize,
}

impl Checkpoints {
    /// Checkpoints in `directory`, which is made when the first is saved.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] when `keep` is zero.
    pub fn new(directory: impl Into<PathBuf>, keep: usize) -> Result<Self, Error> {
        if keep == 0 {
            return Err(Error::InvalidSetting { name: "keep", value: "0".into(), expected: "at least 1" });
        }
        Ok(Self { directory: directory.into(), keep })
    }

    /// Changes the directory. The number of checkpoints to keep stays.
    pub fn with_directory(self, directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into(), ..self }
    }

    /// Saves the checkpoint of `step`: `write` puts its files into the directory that it gets. Then it removes all but the newest `keep`
    /// checkpoints. Checkpoints of later steps exist if the run resumed from an earlier one. Damaged ones among them are removed. The
    /// others are set aside, because they may be whole and were unreadable only for a moment. They are removed when the run has passed
    /// their steps again.
    ///
    /// # Errors
    /// [`Error::Save`]; the checkpoints that were there stay.
    pub(crate) fn save(&self, step: u64, write: impl FnOnce(&Path) -> Result<(), String>) -> Result<PathBuf, Error> {
        let path = self.path_of(step);
        let part = self.directory.join(format!(".step-{step:08}.partial"));
        let saved = empty(&part).and_then(|()| write(&part)).and_then(|()| seal(&part));
        saved.and_then(|()| self.replace(&part, &path).map_err(|e| e.to_string())).map_err(|reason| {
            let _ = fs::remove_dir_all(&part);
            Error::Save { path: path.clone(), reason }
        })?;
        if let Err(error) = self.prune(step) {
            tracing::warn!("checkpoint '{}' is saved; older ones could not be removed: {error}", path.display());
        }
        Ok(path)
    }

    /// The directory of the checkpoint of `step`.
    pub(crate) fn path_of(&self, step: u64) -> PathBuf {
        self.directory.join(format!("step-{step:08}"))
    }

    /// Renames `part` to `path`. An existing checkpoint of the same step is set aside until the new one is in its place. It can be found
    /// under the name that it then has.
    fn replace(&self, part: &Path, path: &Path) -> io::Result<()> {
        if !path.exists() {
            return fs::rename(part, path).and_then(|()| sync(&self.directory));
        }
        let aside = aside(path);
        if aside.exists() {
            fs::remove_dir_all(&aside)?;
        }
        fs::rename(path, &aside)?;
        if let Err(error) = fs::rename(part, path).and_then(|()| sync(&self.directory)) {
            fs::rename(&aside, path)?;
            return Err(error);
        }
        fs::remove_dir_all(&aside)
    }

    /// The checkpoints, newest first; none when the directory is not there.
    ///
    /// # Errors
    /// [`Error::Load`] when the directory cannot be listed.
    pub fn list(&self) -> Result<Vec<PathBuf>, Error> {
        let of_step = |path: PathBuf| Some((step(&path)?, path));
        let mut found: Vec<(u64, PathBuf)> = self.entries()?.into_iter().filter_map(of_step).collect();
        found.retain(|(_, path)| path.is_dir() && !replaced(path));
        found.sort();
        Ok(found.into_iter().rev().map(|(_, path)| path).collect())
    }

    fn entries(&self) -> Result<Vec<PathBuf>, Error> {
        if !self.directory.is_dir() {
            return Ok(vec![]);
        }
        let read = |entries: fs::ReadDir| entries.map(|entry| entry.map(|entry| entry.path())).collect();
        fs::read_dir(&self.directory)
            .and_then(read)
            .map_err(|e| Error::Load { path: self.directory.clone(), reason: e.to_string() })
    }

    /// Calls `load` with the newest checkpoint, and returns its path. If the error of `load` comes from the checkpoint, it logs a warning
    /// and tries the checkpoint before. Returns `None` if there is no checkpoint.
    ///
    /// # Errors
    /// [`Error::Load`] when there are checkpoints and none can be used, [`Error::Memory`] and [`Error::Lost`] when the device has no
    /// room for one that can.
    pub(crate) fn resume(&self, mut load: impl FnMut(&Path) -> Result<(), Error>) -> Result<Option<PathBuf>, Error> {
        let mut last = None;
        for path in self.list()? {
            if let Some(error) = last.take() {
                tracing::warn!("{error}; trying the one before");
            }
            match load(&path) {
                Ok(()) => return Ok(Some(path)),
                // The checkpoint is whole, and the one before would not fit either.
                Err(error @ (Error::Memory(_) | Error::Lost(_))) => return Err(error),
                Err(error) => last = Some(error),
            }
        }
        last.map_or(Ok(None), Err)
    }

    /// The newest checkpoint that is not damaged. A checkpoint that cannot be read for another reason counts too: it may be whole, and
    /// loading it reports the reason.
    ///
    /// # Errors
    /// [`Error::Load`] when the directory cannot be listed.
    pub fn newest(&self) -> Result<Option<PathBuf>, Error> {
        Ok(self.list()?.into_iter().find(|path| may_be_whole(path)))
    }

    /// The step of the newest whole checkpoint.
    ///
    /// # Errors
    /// Those of [`newest`](Self::newest).
    pub fn newest_step(&self) -> Result<Option<u64>, Error> {
        Ok(self.newest()?.and_then(|path| step(&path)))
    }

    /// The checkpoint of the best evaluation, unless it is damaged, in a run that is [judged](crate::CheckpointConfig::best).
    pub fn best(&self) -> Option<PathBuf> {
        let path = self.directory.join(BEST);
        // A process that was killed while it replaced the best checkpoint has left the earlier one.
        [path.clone(), aside(&path)].into_iter().find(|path| may_be_whole(path))
    }

    /// The best checkpoint, which may be damaged.
    pub(crate) fn best_path(&self) -> Option<PathBuf> {
        let path = self.directory.join(BEST);
        [path.clone(), aside(&path)].into_iter().find(|path| path.is_dir())
    }

    /// Whether there is a checkpoint of `step` that is not damaged.
    pub(crate) fn has(&self, step: u64) -> bool {
        may_be_whole(&self.path_of(step))
    }

    /// Makes the checkpoint of `step` the best one. The checkpoint also keeps its place in the list. Both names share files on disk where
    /// the file system allows it.
    ///
    /// # Errors
    /// [`Error::Save`]; the earlier best checkpoint stays.
    pub(crate) fn keep_best(&self, step: u64) -> Result<PathBuf, Error> {
        let (from, path) = (self.path_of(step), self.directory.join(BEST));
        let part = self.directory.join(format!(".{BEST}.partial"));
        let shared = || {
            for file in FILES.into_iter().chain([MANIFEST]) {
                let (from, to) = (from.join(file), part.join(file));
                if fs::hard_link(&from, &to).is_err() {
                    fs::copy(&from, &to)?;
                    sync(&to)?;
                }
            }
            sync(&part)?;
            self.replace(&part, &path)
        };
        empty(&part).and_then(|()| shared().map_err(|e| e.to_string())).map_err(|reason| {
            let _ = fs::remove_dir_all(&part);
            Error::Save { path: path.clone(), reason }
        })?;
        Ok(path)
    }

    /// Removes and sets aside other checkpoints after that of step `saved` was written, as [`save`](Self::save) describes.
    fn prune(&self, saved: u64) -> io::Result<()> {
        let (later, found): (Vec<_>, Vec<_>) =
            self.list().unwrap_or_default().into_iter().partition(|path| step(path) > Some(saved));
        for path in later {
            if may_be_whole(&path) { set_aside(&path)? } else { fs::remove_dir_all(path)? }
        }
        // Leftovers of an interrupted save, and checkpoints that the run has passed again. Other files and directories are the user's.
        let left = |path: &PathBuf| {
            is_partial(path)
                || step(path).is_some() && replaced(path)
                || step_set_aside(path).is_some_and(|step| step <= saved)
        };
        let left = self.entries().unwrap_or_default().into_iter().filter(left);
        found.into_iter().skip(self.keep).chain(left).try_for_each(fs::remove_dir_all)
    }
}

/// Whether the checkpoint `path` is there and its files do not prove that it is damaged.
fn may_be_whole(path: &Path) -> bool {
    !matches!(verify(path), Err(Fault::Damaged(_)))
}

/// Takes a checkpoint out of the list, in which it would be the newest.
fn set_aside(path: &Path) -> io::Result<()> {
    let aside = path.with_file_name(format!("{}{LATER}", name(path)));
    if aside.exists() {
        fs::remove_dir_all(&aside)?;
    }
    fs::rename(path, &aside)?;
    tracing::warn!("checkpoint '{}' is of a later step than the run; it is kept as '{}'", path.display(), name(&aside));
    Ok(())
}

/// The step of a checkpoint that was set aside because the run went back behind it.
fn step_set_aside(path: &Path) -> Option<u64> {
    step(Path::new(name(path).strip_suffix(LATER)?)).filter(|_| path.is_dir())
}

/// Whether `path` is an unfinished checkpoint: its full name is `.step-`, digits and `.partial`.
fn is_partial(path: &Path) -> bool {
    let name = name(path);
    let plain = name.strip_prefix('.').and_then(|name| name.strip_suffix(".partial"));
    plain.is_some_and(|plain| step(Path::new(plain)).is_some()) && path.is_dir()
}

/// The path of a checkpoint while another one takes its place.
fn aside(path: &Path) -> PathBuf {
    path.with_file_name(format!("{}{ASIDE}", name(path)))
}

/// Whether `path` was set aside for another checkpoint of the same step that now exists.
fn replaced(path: &Path) -> bool {
    name(path).strip_suffix(ASIDE).is_some_and(|plain| path.with_file_name(plain).is_dir())
}

/// The step of a checkpoint, by its name: `step-` and digits. Other directories are the user's.
fn step(path: &Path) -> Option<u64> {
    let name = name(path);
    let digits = name.strip_prefix("step-")?;
    let digits = digits.strip_suffix(ASIDE).unwrap_or(digits);
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Makes an empty directory at `part`, whose parent may be new.
fn empty(part: &Path) -> Result<(), String> {
    let make = || {
        if part.exists() {
            fs::remove_dir_all(part)?;
        }
        fs::create_dir_all(part)?;
        part.parent().and_then(Path::parent).map_or(Ok(()), sync)
    };
    make().map_err(|e: io::Error| e.to_string())
}

/// Loads the model record of the checkpoint directory `path` into `model`, after verifying the files.
///
/// # Errors
/// [`Error::Load`] when the checkpoint is damaged or of another version.
pub fn load_model<M: Module>(model: M, path: impl AsRef<Path>) -> Result<M, Error> {
    load_model_by(model, path.as_ref(), |file| ModuleRecord::load(file).map_err(|e| e.to_string()))
}

/// Verifies the checkpoint directory `path`, reads its model file by `load`, and loads the record into `model`.
pub(crate) fn load_model_by<M: Module>(
    model: M,
    path: &Path,
    load: impl FnOnce(&Path) -> Result<ModuleRecord, String>,
) -> Result<M, Error> {
    let fail = |reason: String| Error::Load { path: path.to_owned(), reason };
    verify(path).map_err(|fault| fail(fault.to_string()))?;
    let record = load(&path.join(MODEL)).map_err(fail)?;
    let missing = placeholders(&model).len();
    // burn does not say what a part of a record lacks. It refuses what the model lacks.
    if missing > 0 && record.len() + missing != tensors(&model) {
        let (found, expected) = (record.len(), tensors(&model) - missing);
        return Err(fail(format!("not a checkpoint of this model: it has {found} tensors, expected {expected}")));
    }
    let loaded = model.try_load_record(record.allow_partial(missing > 0));
    loaded.map_err(|e| fail(format!("not a checkpoint of this model: {e}")))
}

/// The record of a model. Parameters whose values are in codes that are attached to them are not in it.
pub(crate) fn record_of<M: Module>(model: M) -> ModuleRecord {
    let without = placeholders(&model);
    match without.is_empty() {
        true => model.into_record(),
        false => {
            model.into_record_group(ParamGroup::all().exclude(ParamGroup::from_ids(without.into_iter().collect())))
        }
    }
}

/// The number of tensors of a model.
fn tensors(model: &impl Module) -> usize {
    struct Count(usize);
    impl ModuleVisitor for Count {
        fn visit_float<const D: usize>(&mut self, _: &Param<Tensor<D>>) {
            self.0 += 1;
        }
        fn visit_int<const D: usize>(&mut self, _: &Param<Tensor<D, Int>>) {
            self.0 += 1;
        }
        fn visit_bool<const D: usize>(&mut self, _: &Param<Tensor<D, Bool>>) {
            self.0 += 1;
        }
    }
    let mut count = Count(0);
    model.visit(&mut count);
    count.0
}
