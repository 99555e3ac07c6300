//! The directory of a run.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};

use crate::atomic::replace;
use crate::pipelines::CHECKPOINTS;
use crate::usage::Usage;
use anyhow::{Context, Result, bail};
use kiln_training::Checkpoints;
use serde::Serialize;
use serde_json::Value;

pub(crate) const CONFIG: &str = "config.toml";
pub(crate) const CLASSES: &str = "classes.txt";
const METRICS: &str = "metrics.jsonl";

/// Where a run writes: its settings, a line of metrics per event, checkpoints, the model, and the report.
pub(crate) struct RunDirectory {
    path: PathBuf,
}

impl RunDirectory {
    /// A new run in `out`, or in the next free `runs/NAME-NNN`, with its settings written down.
    pub(crate) fn create(out: Option<&Path>, name: &str, settings: &impl Serialize) -> Result<Self> {
        let path = match out {
            Some(path) => {
                let occupied = path.exists() && fs::read_dir(path).map_or(true, |mut entries| entries.next().is_some());
                if occupied {
                    bail!(Usage(format!(
                        "'{}' exists and is not an empty directory, expected a new one (or --resume)",
                        path.display()
                    )));
                }
                fs::create_dir_all(path).with_context(|| format!("cannot make '{}'", path.display()))?;
                path.to_owned()
            }
            None => next_free(Path::new("runs"), name)?,
        };
        let directory = Self { path };
        let text = toml::to_string_pretty(settings)?;
        replace(&directory.file(CONFIG), text.as_bytes())?;
        Ok(directory)
    }

    /// Keeps other processes from this run for as long as the returned file is open, also after a crash of this one.
    pub(crate) fn lock(&self) -> Result<File> {
        let path = self.file("lock");
        let file = File::create(&path).with_context(|| format!("cannot write '{}'", path.display()))?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => bail!("another process is working on the run '{}'", self.path.display()),
            Err(TryLockError::Error(e)) => Err(e).with_context(|| format!("cannot lock '{}'", path.display())),
        }
    }

    /// Notes which label means which class.
    pub(crate) fn write_classes(&self, classes: &[String]) -> Result<()> {
        match classes {
            [] => Ok(()),
            _ => replace(&self.file(CLASSES), (classes.join("\n") + "\n").as_bytes()),
        }
    }

    /// The directory of a run that is there already.
    pub(crate) fn existing(path: &Path) -> Self {
        Self { path: path.to_owned() }
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

    /// The lines of metrics so far, as they stand and parsed; a half-written last line is left out.
    fn lines(&self) -> Result<Vec<(String, Value)>> {
        let path = self.file(METRICS);
        if !path.exists() {
            return Ok(vec![]);
        }
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read '{}'", path.display()))?;
        let parsed = |line: &str| Some((line.to_owned(), serde_json::from_str(line).ok()?));
        Ok(text.lines().filter_map(parsed).collect())
    }

    /// All metrics so far.
    pub(crate) fn metrics(&self) -> Result<Vec<Value>> {
        Ok(self.lines()?.into_iter().map(|(_, value)| value).collect())
    }

    /// The metrics file, opened to append, without what was written after `step`.
    pub(crate) fn metrics_after(&self, step: u64) -> Result<File> {
        let kept = self.lines()?.into_iter().filter(|(_, value)| value["step"].as_u64().is_some_and(|s| s <= step));
        let text: String = kept.map(|(line, _)| line + "\n").collect();
        let path = self.file(METRICS);
        replace(&path, text.as_bytes())?;
        OpenOptions::new().append(true).open(&path).with_context(|| format!("cannot write '{}'", path.display()))
    }
}

fn next_free(runs: &Path, name: &str) -> Result<PathBuf> {
    fs::create_dir_all(runs).with_context(|| format!("cannot make '{}'", runs.display()))?;
    for number in 1.. {
        let path = runs.join(format!("{name}-{number:03}"));
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e).with_context(|| format!("cannot make '{}'", path.display())),
        }
    }
    unreachable!("the numbers do not end")
}
