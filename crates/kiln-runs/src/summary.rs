//! The summary of a run from its directory.

use std::fs;
use std::path::{Path, PathBuf};

use kiln_report::{Best, Measure, State, best, main_measure, series};
use serde_json::Value;
use time::OffsetDateTime;

use crate::clock::written;
use crate::error::Error;
use crate::files::is_locked;
use crate::metrics;
use crate::status::Status;

/// The settings of a run in its directory.
pub const CONFIG: &str = "config.toml";

/// A run on disk.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RunSummary {
    /// Its directory.
    pub path: PathBuf,
    /// The name of its directory.
    pub name: String,
    /// Whether it runs, and how it ended.
    pub state: State,
    /// The last step that it has taken.
    pub step: u64,
    /// The metric that it is judged by.
    pub measure: Option<Measure>,
    /// The best value of that metric.
    pub best: Option<Best>,
    /// When it began, in UTC.
    pub started: Option<String>,
    /// The notes of its processes.
    pub status: Option<Status>,
    /// Its settings. `Null` if it has none.
    pub settings: Value,
    /// The lines of its metrics.
    pub metrics: Vec<Value>,
}

impl RunSummary {
    /// Whether `path` is the directory of a run: it has settings, or notes of a process that worked on it.
    pub fn is_run(path: &Path) -> bool {
        path.join(CONFIG).is_file() || noted(path).is_some()
    }

    /// The run in `path`.
    ///
    /// # Errors
    /// [`Error::NoRun`] for another directory, [`Error::Damaged`] and [`Error::File`] for files that cannot be read.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let config = path.join(CONFIG);
        let no_run = |reason: String| Error::NoRun { path: path.to_owned(), reason };
        let status = if config.is_file() { Status::read(path) } else { noted(path) };
        let settings = match (config.is_file(), &status) {
            (false, None) => return Err(no_run(format!("it has no {CONFIG}"))),
            (false, Some(_)) => Value::Null,
            (true, _) => {
                let damaged = |reason: String| Error::Damaged { path: config.clone(), reason };
                let text = fs::read_to_string(&config).map_err(Error::reading(&config))?;
                let table: toml::Table = text.parse().map_err(|e: toml::de::Error| damaged(e.message().into()))?;
                if status.is_none() && !(table.contains_key("run") && table.contains_key("model")) {
                    return Err(no_run(format!("its {CONFIG} has no [run] and [model]")));
                }
                serde_json::to_value(table).map_err(|error| damaged(error.to_string()))?
            }
        };
        let metrics = metrics::read(path)?;
        let working = is_locked(path);
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
    pub fn seconds(&self) -> Option<f64> {
        self.status.as_ref().map(Status::seconds)
    }

    /// Steps of the whole run.
    pub fn total_steps(&self) -> Option<u64> {
        self.status.as_ref().map(|status| status.total_steps)
    }

    /// A figure of its results.
    pub fn result(&self, name: &str) -> Option<f64> {
        self.status.as_ref()?.results[name].as_f64()
    }

    /// The most bytes of a step.
    pub fn peak_bytes(&self) -> Option<u64> {
        self.status.as_ref()?.results["peak_bytes"].as_u64()
    }
}

/// The notes of the processes that worked on a run. Another program may have a file of this name, too.
fn noted(path: &Path) -> Option<Status> {
    Status::read(path).filter(|status| !status.sessions.is_empty() || !status.recipe.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Session;

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
        assert_eq!((summary().state, summary().step), (State::Unknown, 3));
        assert_eq!(summary().settings["model"]["name"], "resnet18");
        assert_eq!(summary().best.map(|best| best.value), Some(0.5));
        Status::default().write(folder.path()).unwrap();
        assert_eq!(summary().state, State::Killed);
        // A run of another program has other settings, or none.
        fs::write(folder.path().join(CONFIG), "rate = 0.1\n").unwrap();
        assert_eq!(summary().settings["rate"], 0.1);
        fs::remove_file(folder.path().join(CONFIG)).unwrap();
        assert!(!RunSummary::is_run(folder.path()) && RunSummary::read(folder.path()).is_err());
        let session = Session { from_step: 0, started: "2026-11-21T08:30:00Z".into(), seconds: 1.0 };
        Status { sessions: vec![session], ..Status::default() }.write(folder.path()).unwrap();
        assert!(RunSummary::is_run(folder.path()) && summary().settings.is_null() && summary().started.is_some());
        let lock = crate::files::lock(folder.path()).unwrap();
        assert_eq!(summary().state, State::Running);
        drop(lock);
        assert_eq!(summary().state, State::Killed);
    }
}
