//! The directory of a run.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use kiln_data::printable;
use kiln_report::counted;
use kiln_runs::CHECKPOINTS;
use kiln_runs::CONFIG;
use kiln_runs::replace;
use kiln_training::Checkpoints;
use serde::Serialize;

use crate::pipelines::settings_beside;
use crate::usage::Usage;

/// The names of the classes of a run, one a line.
const CLASSES: &str = "classes.txt";
/// The directory of runs whose own is not named.
pub(crate) const RUNS: &str = "runs";
/// The directory of parameters, gradients and optimizer state that do not fit into memory.
const STORE: &str = "store";

/// The files of a run: its settings, metrics, checkpoints, the model, and the report.
pub(crate) struct RunDirectory {
    path: PathBuf,
    /// Until the run has begun: the directories that were made for it, the outermost first. They are removed again if it does not begin.
    made: Option<Vec<PathBuf>>,
}

impl RunDirectory {
    /// Makes a new run in `out`, or in the next free `runs/NAME-NNN`, and writes its settings.
    pub(crate) fn create(out: Option<&Path>, name: &str, settings: &impl Serialize) -> Result<Self> {
        let mut directory = Self::reserve(out, name)?;
        directory.begin(settings)?;
        Ok(directory)
    }

    /// Makes the directory of a new run. It is removed again unless the run [begins](Self::begin).
    pub(crate) fn reserve(out: Option<&Path>, name: &str) -> Result<Self> {
        let (path, made) = match out {
            Some(path) => {
                let made = missing(path);
                let occupied = path.exists() && fs::read_dir(path).map_or(true, |mut entries| entries.next().is_some());
                if occupied {
                    bail!(Usage(format!(
                        "'{}' exists and is not an empty directory, expected a new one (or --resume)",
                        printable(&path)
                    )));
                }
                fs::create_dir_all(path).with_context(|| format!("cannot make '{}'", printable(&path)))?;
                (path.to_owned(), made)
            }
            None => {
                let mut made = missing(Path::new(RUNS));
                let path = next_free(Path::new(RUNS), name)?;
                made.push(path.clone());
                (path, made)
            }
        };
        Ok(Self { path, made: Some(made) })
    }

    /// Writes the settings of a new run.
    pub(crate) fn begin(&mut self, settings: &impl Serialize) -> Result<()> {
        let text = toml::to_string_pretty(settings)?;
        replace(&self.file(CONFIG), text.as_bytes())?;
        self.made = None;
        Ok(())
    }

    /// Writes the class of each label.
    pub(crate) fn write_classes(&self, classes: &[String]) -> Result<()> {
        match classes {
            [] => Ok(()),
            _ => Ok(replace(&self.file(CLASSES), (classes.join("\n") + "\n").as_bytes())?),
        }
    }

    /// The directory of an existing run.
    pub(crate) fn existing(path: &Path) -> Self {
        Self { path: path.to_owned(), made: None }
    }

    /// The store of a run that names none.
    pub(crate) fn store(&self) -> PathBuf {
        self.path.join(STORE)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub(crate) fn checkpoints(&self) -> PathBuf {
        self.path.join(CHECKPOINTS)
    }

    /// The best checkpoint, if there is one.
    pub(crate) fn best(&self) -> Result<Option<PathBuf>> {
        Ok(Checkpoints::new(self.checkpoints(), 1)?.best())
    }
}

impl Drop for RunDirectory {
    fn drop(&mut self) {
        let Some(made) = &self.made else { return };
        let _ = fs::remove_dir_all(self.store());
        // Only empty ones: others may use them by now.
        made.iter().rev().for_each(|directory| drop(fs::remove_dir(directory)));
    }
}

/// The directories that are missing on the way to `path`, the outermost first.
fn missing(path: &Path) -> Vec<PathBuf> {
    let lacking = path.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists());
    let mut missing: Vec<PathBuf> = lacking.map(Path::to_owned).collect();
    missing.reverse();
    missing
}

fn next_free(runs: &Path, name: &str) -> Result<PathBuf> {
    fs::create_dir_all(runs).with_context(|| format!("cannot make '{}'", printable(&runs)))?;
    for number in 1.. {
        let path = runs.join(format!("{name}-{number:03}"));
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e).with_context(|| format!("cannot make '{}'", printable(&path))),
        }
    }
    unreachable!("the numbers do not end")
}

/// The names of the `count` classes of a run, from the directory around its weights. `None` if the run does not name them.
pub(crate) fn classes(run: &Path, count: usize) -> Result<Option<Vec<String>>> {
    let Some(file) = settings_beside(run).map(|config| config.with_file_name(CLASSES)).filter(|file| file.is_file())
    else {
        return Ok(None);
    };
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read '{}'", printable(&file)))?;
    let names: Vec<String> = text.lines().map(str::to_owned).collect();
    if names.len() != count {
        bail!("'{}' has {}, expected {count} as the model", printable(&file), counted(names.len(), "class"));
    }
    Ok(Some(names))
}

/// Refuses data whose labels mean other classes than those of the run in `run`, if the run names its classes.
pub(crate) fn check_classes(run: &Path, classes: &[String]) -> Result<()> {
    let Ok(text) = fs::read_to_string(run.join(CLASSES)) else { return Ok(()) };
    let known: Vec<&str> = text.lines().collect();
    if known != classes {
        bail!("the classes of the data set are {classes:?}, expected {known:?} as in '{}'", printable(&run));
    }
    Ok(())
}

/// Refuses data as [`check_classes`] does, for the run that a checkpoint belongs to, if it belongs to one.
pub(crate) fn check_classes_of(checkpoint: &Path, classes: &[String]) -> Result<()> {
    match settings_beside(checkpoint).as_deref().and_then(Path::parent) {
        Some(run) => check_classes(run, classes),
        None => Ok(()),
    }
}
