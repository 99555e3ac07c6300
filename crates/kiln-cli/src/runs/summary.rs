//! The summary of a run from its directory.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use kiln_data::printable;
use kiln_report::{Best, Measure, State, best, main_measure, series};
use serde_json::Value;
use time::OffsetDateTime;

use super::settings::model;
use super::status::Status;
use crate::host::written;
use crate::metrics;
use crate::run_directory::LOCK;
use crate::settings_file::CONFIG;

/// A run on disk.
pub(crate) struct RunSummary {
    pub(crate) path: PathBuf,
    /// The name of its directory.
    pub(crate) name: String,
    pub(crate) model: String,
    pub(crate) state: State,
    pub(crate) step: u64,
    pub(crate) measure: Option<Measure>,
    pub(crate) best: Option<Best>,
    /// When it began, in UTC.
    pub(crate) started: Option<String>,
    pub(crate) status: Option<Status>,
    pub(crate) settings: Value,
    pub(crate) metrics: Vec<Value>,
}

impl RunSummary {
    /// The run in `path`.
    ///
    /// # Errors
    /// If the directory is not that of a run, or its files are damaged.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let config = path.join(CONFIG);
        if !config.is_file() {
            bail!("'{}' is no run: it has no {CONFIG}", printable(&path));
        }
        let text = fs::read_to_string(&config).with_context(|| format!("cannot read '{}'", printable(&config)))?;
        let table: toml::Table = text
            .parse()
            .map_err(|e: toml::de::Error| anyhow::anyhow!("'{}' is damaged: {}", printable(&config), e.message()))?;
        if !table.contains_key("run") || !table.contains_key("model") {
            bail!("'{}' is no run: its {CONFIG} has no [run] and [model]", printable(&path));
        }
        let settings = serde_json::to_value(table).context("cannot read settings")?;
        let metrics = metrics::read(path)?;
        let status = Status::read(path);
        let working = is_working(&path.join(LOCK));
        let state = match &status {
            Some(status) => status.state(working),
            None if working => State::Running,
            None => State::Unknown,
        };
        let measure = main_measure(&metrics);
        let best = measure.and_then(|measure| best(&series(&metrics, "evaluation", measure.name), measure.goal));
        let of_status =
            status.as_ref().and_then(|status| status.sessions.first()).map(|session| session.started.clone());
        let of_file = || Some(written(OffsetDateTime::from(fs::metadata(&config).ok()?.modified().ok()?)));
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let name =
            absolute.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into());
        Ok(Self {
            path: path.to_owned(),
            name,
            model: model(&settings),
            state,
            step: metrics.iter().filter_map(|line| line["step"].as_u64()).max().unwrap_or(0),
            measure,
            best,
            started: of_status.or_else(of_file),
            status,
            settings,
            metrics,
        })
    }

    /// Seconds of all processes that worked on it.
    pub(super) fn seconds(&self) -> Option<f64> {
        self.status.as_ref().map(Status::seconds)
    }

    pub(super) fn total_steps(&self) -> Option<u64> {
        self.status.as_ref().map(|status| status.total_steps)
    }

    /// A figure of its results.
    pub(super) fn result(&self, name: &str) -> Option<f64> {
        self.status.as_ref()?.results[name].as_f64()
    }

    pub(super) fn peak_bytes(&self) -> Option<u64> {
        self.status.as_ref()?.results["peak_bytes"].as_u64()
    }
}

/// Whether a process holds the lock of a run.
fn is_working(lock: &Path) -> bool {
    File::open(lock).is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_no_run_is_refused_with_a_reason() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |text: Option<&str>| {
            if let Some(text) = text {
                fs::write(folder.path().join(CONFIG), text).unwrap();
            }
            RunSummary::read(folder.path()).err().unwrap().to_string()
        };
        assert!(refused(None).contains("it has no config.toml"));
        assert!(refused(Some("run = [")).contains("is damaged"));
        assert!(refused(Some("a = 1")).contains("no [run] and [model]"));
    }

    #[test]
    fn a_run_is_running_as_long_as_its_lock_is_held() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(CONFIG), "[run]\nseed = 1\n[model]\nname = 'resnet18'\n").unwrap();
        let lines = "{\"kind\": \"evaluation\", \"step\": 3, \"val_accuracy\": 0.5}\n{\"kind\": \"step\", \"st";
        fs::write(folder.path().join("metrics.jsonl"), lines).unwrap();
        let summary = || RunSummary::read(folder.path()).unwrap();
        assert_eq!((summary().state, summary().step, summary().model.as_str()), (State::Unknown, 3, "resnet18"));
        assert_eq!(summary().best.map(|best| best.value), Some(0.5));
        Status::default().write(folder.path()).unwrap();
        assert_eq!(summary().state, State::Killed);
        let lock = File::create(folder.path().join(LOCK)).unwrap();
        lock.try_lock().unwrap();
        assert_eq!(summary().state, State::Running);
        drop(lock);
        assert_eq!(summary().state, State::Killed);
    }
}
