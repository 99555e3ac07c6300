use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use burn::module::Module;
use burn::optim::OptimizerRecord;
use burn::store::ModuleRecord;
use kiln_precision::{ScalerState, Scaling};
use kiln_recovery::{Outcome, Recovery, RecoveryState, attempt};
use serde::{Deserialize, Serialize};

use crate::{Error, OptimizerConfig, RunState, Trainer};

const MODEL: &str = "model.bpk";
const OPTIMIZER: &str = "optimizer.bpk";
const STATE: &str = "state.json";
const MANIFEST: &str = "manifest.json";
const VERSION: u32 = 1;
/// Behind the name of a checkpoint while one of the same step takes its place.
const ASIDE: &str = ".old";

/// The checkpoints of a run: one directory each, named after its step, the newest `keep` of them.
///
/// A checkpoint is written under another name, flushed to disk, and renamed when it is whole. Its manifest
/// holds the length and CRC-32 of every file, so that what was damaged later is found as well.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    directory: PathBuf,
    keep: usize,
}

#[derive(Serialize, Deserialize)]
struct Manifest {
    version: u32,
    files: BTreeMap<String, Fingerprint>,
}

#[derive(Serialize, Deserialize, PartialEq)]
struct Fingerprint {
    bytes: u64,
    crc32: u32,
}

/// A loss scale and the rules it follows, which are part of the run.
#[derive(Serialize, Deserialize)]
struct SavedScaler {
    state: ScalerState,
    scaling: Scaling,
}

/// Where the run is, and what it must not change meanwhile.
#[derive(Serialize, Deserialize)]
struct SavedState {
    state: RunState,
    total_steps: u64,
    samples: usize,
    #[serde(default)]
    scaler: Option<SavedScaler>,
    #[serde(default)]
    recovery: Option<RecoveryState>,
    #[serde(default)]
    optimizer: Option<OptimizerConfig>,
}

impl Checkpoints {
    /// Checkpoints in `directory`, which is made when the first is saved.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] when `keep` is zero.
    pub fn new(directory: impl Into<PathBuf>, keep: usize) -> Result<Self, Error> {
        if keep == 0 {
            return Err(Error::InvalidSetting { field: "keep", value: "0".into(), expected: "at least 1" });
        }
        Ok(Self { directory: directory.into(), keep })
    }

    /// The same rules in another directory.
    pub fn within(self, directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into(), ..self }
    }

    /// Writes the run as it is now, removes checkpoints of later steps (a future that this run has left, or damaged ones
    /// that it passed over) and then those beyond the newest `keep`.
    ///
    /// # Errors
    /// [`Error::Save`]; the checkpoints that were there stay. [`Error::Unfinished`] in the middle of an update.
    pub fn save<M: Module>(&self, trainer: &Trainer<M>) -> Result<PathBuf, Error> {
        trainer.ready()?; // half an update must not be saved
        let state = trainer.state();
        let path = self.directory.join(format!("step-{:08}", state.step));
        let part = self.directory.join(format!(".step-{:08}.partial", state.step));
        write(trainer, &state, &part).and_then(|()| self.replace(&part, &path).map_err(|e| e.to_string())).map_err(
            |reason| {
                let _ = fs::remove_dir_all(&part);
                Error::Save { path: path.clone(), reason }
            },
        )?;
        if let Err(error) = self.prune(&path) {
            tracing::warn!("checkpoint '{}' is saved; older ones could not be removed: {error}", path.display());
        }
        Ok(path)
    }

    /// Renames `part` to `path`. A checkpoint that is there already, of the same step, is set aside until the new one is in
    /// its place, and is found under that name as well.
    fn replace(&self, part: &Path, path: &Path) -> std::io::Result<()> {
        if !path.exists() {
            return fs::rename(part, path).and_then(|()| sync(&self.directory));
        }
        let aside = self.directory.join(format!("{}{ASIDE}", name(path)));
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
        let named = |path: &PathBuf| path.is_dir() && name(path).starts_with("step-") && !replaced(path);
        let mut found: Vec<PathBuf> = self.entries()?.into_iter().filter(named).collect();
        found.sort();
        found.reverse();
        Ok(found)
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

    /// Brings `trainer` to the newest checkpoint that is whole, and returns its path. A damaged one is passed
    /// over with a warning; `None` when there is no checkpoint at all.
    ///
    /// # Errors
    /// [`Error::Load`] when there are checkpoints and none can be used, [`Error::Memory`] and [`Error::Lost`] when the device has no
    /// room for one that can.
    pub fn resume<M: Module>(&self, trainer: &mut Trainer<M>) -> Result<Option<PathBuf>, Error> {
        let mut last = None;
        for path in self.list()? {
            if let Some(error) = last.take() {
                tracing::warn!("{error}; trying the one before");
            }
            match load(trainer, &path) {
                Ok(()) => return Ok(Some(path)),
                // The checkpoint is whole, and the one before would not fit either.
                Err(error @ (Error::Memory(_) | Error::Lost(_))) => return Err(error),
                Err(error) => last = Some(error),
            }
        }
        last.map_or(Ok(None), Err)
    }

    /// The newest checkpoint that is whole.
    ///
    /// # Errors
    /// [`Error::Load`] when the directory cannot be listed.
    pub fn newest(&self) -> Result<Option<PathBuf>, Error> {
        Ok(self.list()?.into_iter().find(|path| verify(path).is_ok()))
    }

    fn prune(&self, saved: &Path) -> std::io::Result<()> {
        let (later, found): (Vec<_>, Vec<_>) =
            self.list().unwrap_or_default().into_iter().partition(|path| path.as_path() > saved);
        let left = |path: &PathBuf| name(path).ends_with(".partial") || replaced(path);
        let left = self.entries().unwrap_or_default().into_iter().filter(left);
        later.into_iter().chain(found.into_iter().skip(self.keep)).chain(left).try_for_each(fs::remove_dir_all)
    }
}

/// Whether `path` was set aside for another checkpoint of the same step, which is in its place.
fn replaced(path: &Path) -> bool {
    name(path).strip_suffix(ASIDE).is_some_and(|plain| path.with_file_name(plain).is_dir())
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn sync(path: &Path) -> std::io::Result<()> {
    // The parent of a relative name is the empty path, which stands for the current directory.
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    File::open(path)?.sync_all()
}

fn write<M: Module>(trainer: &Trainer<M>, state: &RunState, part: &Path) -> Result<(), String> {
    let io = |e: std::io::Error| e.to_string();
    if part.exists() {
        fs::remove_dir_all(part).map_err(io)?;
    }
    fs::create_dir_all(part).map_err(io)?;
    if let Some(above) = part.parent().and_then(Path::parent) {
        sync(above).map_err(io)?; // the directory of checkpoints may be new
    }
    let (model, optimizer) = trainer.parts();
    // `valid` folds the running statistics of all threads into the value that is recorded.
    let _ = model.valid();
    model.clone().into_record().save(part.join(MODEL)).map_err(|e| e.to_string())?;
    optimizer.save(part.join(OPTIMIZER)).map_err(|e| e.to_string())?;
    let (total_steps, samples) = (trainer.total_steps(), trainer.samples());
    let scaler = Some(SavedScaler { state: trainer.scaler(), scaling: trainer.scaling() });
    let recovery = trainer.recovery().map(Recovery::state);
    let optimizer = Some(trainer.settings.optimizer);
    let saved = SavedState { state: *state, total_steps, samples, scaler, recovery, optimizer };
    fs::write(part.join(STATE), serde_json::to_vec_pretty(&saved).map_err(|e| e.to_string())?).map_err(io)?;
    let mut files = BTreeMap::new();
    for file in [MODEL, OPTIMIZER, STATE] {
        sync(&part.join(file)).map_err(io)?;
        files.insert(file.to_owned(), fingerprint(&part.join(file)).map_err(io)?);
    }
    let manifest = serde_json::to_vec_pretty(&Manifest { version: VERSION, files }).map_err(|e| e.to_string())?;
    fs::write(part.join(MANIFEST), manifest).map_err(io)?;
    sync(&part.join(MANIFEST)).and_then(|()| sync(part)).map_err(io)
}

/// Of a file as large as a model, which need not be in memory as a whole.
fn fingerprint(path: &Path) -> std::io::Result<Fingerprint> {
    let (mut file, mut hasher) = (File::open(path)?, crc32fast::Hasher::new());
    let (mut buffer, mut bytes) = (vec![0; 1 << 20], 0);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(Fingerprint { bytes, crc32: hasher.finalize() }),
            count => {
                hasher.update(&buffer[..count]);
                bytes += count as u64;
            }
        }
    }
}

/// Checks every file of the checkpoint `path` against its manifest.
fn verify(path: &Path) -> Result<(), String> {
    let text = fs::read(path.join(MANIFEST)).map_err(|e| format!("{MANIFEST}: {e}"))?;
    let manifest: Manifest = serde_json::from_slice(&text).map_err(|e| format!("{MANIFEST} is damaged: {e}"))?;
    if manifest.version != VERSION {
        return Err(format!("its version is {}, expected {VERSION}", manifest.version));
    }
    for file in [MODEL, OPTIMIZER, STATE] {
        let expected = manifest.files.get(file).ok_or_else(|| format!("{MANIFEST} lacks {file}"))?;
        let found = fingerprint(&path.join(file)).map_err(|e| format!("{file}: {e}"))?;
        if found != *expected {
            let text = |f: &Fingerprint| format!("{} bytes with CRC-32 {:08x}", f.bytes, f.crc32);
            return Err(format!("{file} is damaged: {}, expected {}", text(&found), text(expected)));
        }
    }
    Ok(())
}

/// The model record of the checkpoint directory `path`, verified.
///
/// # Errors
/// [`Error::Load`] when the checkpoint is damaged or of another version.
pub fn load_model<M: Module>(model: M, path: impl AsRef<Path>) -> Result<M, Error> {
    let path = path.as_ref();
    let fail = |reason: String| Error::Load { path: path.to_owned(), reason };
    verify(path).map_err(fail)?;
    let record = ModuleRecord::load(path.join(MODEL)).map_err(|e| fail(e.to_string()))?;
    model.try_load_record(record).map_err(|e| fail(format!("not a checkpoint of this model: {e}")))
}

fn load<M: Module>(trainer: &mut Trainer<M>, path: &Path) -> Result<(), Error> {
    let fail = |reason: String| Error::Load { path: path.to_owned(), reason };
    // Clones share running statistics, also those that a thread has not folded in yet; `valid` makes new ones.
    let model = load_model(trainer.model().valid().train(), path)?;
    let state = fs::read(path.join(STATE)).map_err(|e| fail(format!("{STATE}: {e}")))?;
    let saved: SavedState = serde_json::from_slice(&state).map_err(|e| fail(format!("{STATE}: {e}")))?;
    for (what, was, is) in [
        ("samples", saved.samples as u64, trainer.samples() as u64),
        ("steps", saved.total_steps, trainer.total_steps()),
    ] {
        if was != is {
            return Err(fail(format!(
                "it belongs to a run of {was} {what}, and this one has {is}: the data has changed"
            )));
        }
    }
    let record = OptimizerRecord::load(path.join(OPTIMIZER)).map_err(|e| fail(e.to_string()))?;
    if let Some(saved) = saved.optimizer.filter(|saved| *saved != trainer.settings.optimizer) {
        let now = trainer.settings.optimizer;
        return Err(fail(format!("its optimizer is {saved:?}, and this run has {now:?}: the settings have changed")));
    }
    if let Some(saved) = saved.scaler.as_ref().filter(|saved| saved.scaling != trainer.scaling()) {
        return Err(fail(format!(
            "its loss scaling is {:?}, and this run has {:?}: the precision has changed",
            saved.scaling,
            trainer.scaling()
        )));
    }
    let scaler = saved.scaler.map(|saved| saved.state);
    if let (Some(recovery), Some(state)) = (trainer.recovery_mut(), saved.recovery) {
        recovery.restore(state).map_err(|e| fail(format!("{STATE}: {e}")))?;
    }
    let restored = trainer.restore(model, |optimizer| optimizer.load_record(record), saved.state, scaler);
    restored.map_err(|e| fail(format!("{STATE}: {e}")))?;
    // A device without room for the parameters says nothing by itself.
    let device = trainer.device().clone();
    match attempt(
        &device,
        || Ok(()),
        |(), probe| {
            probe.module(trainer.model());
        },
    ) {
        Outcome::Done(()) => Ok(()),
        Outcome::Failed(failure) => Err(Error::Memory(failure)),
        Outcome::Passed(error) => Err(error),
    }
}
