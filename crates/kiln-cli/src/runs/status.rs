//! `status.json`: what the program noted about a run when it began, at each evaluation, and when it ended.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use time::OffsetDateTime;

use crate::atomic::replace;
use crate::page::State;

const STATUS: &str = "status.json";

/// What is noted about a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Status {
    pub(crate) state: Noted,
    /// Why it failed, or how to go on.
    pub(crate) detail: String,
    /// The command of `train`.
    pub(crate) command: String,
    /// Model, data and settings in one line.
    pub(crate) recipe: String,
    pub(crate) total_steps: u64,
    /// The processes that worked on the run, oldest first.
    pub(crate) sessions: Vec<Session>,
    /// Figures by name: those of the last process, as far as it had them.
    pub(crate) results: Value,
    /// The settings of a run of which only the command and the data set are given.
    pub(crate) defaults: Value,
    /// Versions and machine.
    pub(crate) facts: Vec<(String, String)>,
}

/// How a run is, as its process noted it. A process that was killed noted nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Noted {
    #[default]
    Running,
    Finished,
    Stopped,
    Failed,
}

/// A process that worked on a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Session {
    /// The step that it went on after.
    pub(crate) from_step: u64,
    /// UTC, as in `2026-11-21T08:30:00Z`.
    pub(crate) started: String,
    pub(crate) seconds: f64,
}

impl Status {
    /// What is noted in `directory`; `None` when nothing is, or nothing that can be read.
    pub(crate) fn read(directory: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(directory.join(STATUS)).ok()?).ok()
    }

    pub(crate) fn write(&self, directory: &Path) -> Result<()> {
        let text = serde_json::to_vec_pretty(self).context("cannot write status.json")?;
        replace(&directory.join(STATUS), &text)
    }

    /// Seconds of all processes.
    pub(crate) fn seconds(&self) -> f64 {
        self.sessions.iter().map(|session| session.seconds).sum()
    }

    /// How the run is, if a process `is_working` on it or not.
    pub(crate) fn state(&self, is_working: bool) -> State {
        match (self.state, is_working) {
            (_, true) => State::Running,
            (Noted::Running, false) => State::Killed,
            (Noted::Finished, false) => State::Finished,
            (Noted::Stopped, false) => State::Stopped,
            (Noted::Failed, false) => State::Failed,
        }
    }
}

/// Now, in UTC.
pub(crate) fn now() -> String {
    written(OffsetDateTime::now_utc())
}

/// A time as in `2026-11-21T08:30:00Z`.
pub(super) fn written(time: OffsetDateTime) -> String {
    let (date, hour, minute, second) = (time.date(), time.hour(), time.minute(), time.second());
    format!("{date}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Status::read(folder.path()), None);
        let session = Session { from_step: 3, started: now(), seconds: 1.5 };
        let status = Status { sessions: vec![session.clone(), session], total_steps: 7, ..Status::default() };
        status.write(folder.path()).unwrap();
        assert_eq!(Status::read(folder.path()), Some(status.clone()));
        assert_eq!(status.seconds(), 3.0);
        // Fields that an older or a newer program has not.
        fs::write(folder.path().join(STATUS), "{\"state\": \"failed\", \"more\": 1}").unwrap();
        assert_eq!(Status::read(folder.path()).map(|status| status.state), Some(Noted::Failed));
        fs::write(folder.path().join(STATUS), "{").unwrap();
        assert_eq!(Status::read(folder.path()), None);
    }

    #[test]
    fn a_run_without_an_end_and_without_a_process_was_killed() {
        let status = Status::default();
        assert_eq!((status.state(true), status.state(false)), (State::Running, State::Killed));
        let failed = Status { state: Noted::Failed, ..status };
        assert_eq!((failed.state(true), failed.state(false)), (State::Running, State::Failed));
    }

    #[test]
    fn times_can_be_sorted_as_text() {
        let time = OffsetDateTime::from_unix_timestamp(951_782_400 + 3_723).unwrap();
        assert_eq!(written(time), "2000-02-29T01:02:03Z");
    }
}
