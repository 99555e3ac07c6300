//! `status.json`: the program's notes about a run at its beginning, at each evaluation, and at its end.

use std::fs;
use std::path::Path;

use kiln_report::State;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::Error;
use crate::files::replace;

const STATUS: &str = "status.json";

/// The notes about a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// How its last process left it.
    pub state: Noted,
    /// The error of a failed run, or how to continue.
    pub detail: String,
    /// The command of `train`.
    pub command: String,
    /// Model, data and settings in one line.
    pub recipe: String,
    /// Steps of the whole run.
    pub total_steps: u64,
    /// The processes that worked on the run, oldest first.
    pub sessions: Vec<Session>,
    /// Figures by name, from the last process that had them.
    pub results: Value,
    /// The settings of a run for which only the command and the data set are given.
    pub defaults: Value,
    /// Versions and machine.
    pub facts: Vec<(String, String)>,
}

/// The state of a run as its process noted it. A killed process notes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Noted {
    /// A process works on it, or was killed.
    #[default]
    Running,
    /// It has taken all its steps, or ended early.
    Finished,
    /// The user stopped it.
    Stopped,
    /// It ended with an error.
    Failed,
}

/// A process that worked on a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Session {
    /// The step after which it continued the run.
    pub from_step: u64,
    /// The start in UTC, as in `2026-11-21T08:30:00Z`.
    pub started: String,
    /// How long it worked.
    pub seconds: f64,
}

impl Status {
    /// The notes in `directory`. `None` if there are none, or none that can be read.
    pub fn read(directory: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(directory.join(STATUS)).ok()?).ok()
    }

    /// Writes the notes into `directory`.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn write(&self, directory: &Path) -> Result<(), Error> {
        let text = serde_json::to_vec_pretty(self).map_err(|error| Error::Settings(error.to_string()))?;
        replace(&directory.join(STATUS), &text)
    }

    /// Seconds of all processes together.
    pub fn seconds(&self) -> f64 {
        self.sessions.iter().map(|session| session.seconds).sum()
    }

    /// The state of the run. `is_working` says whether a process works on it.
    pub fn state(&self, is_working: bool) -> State {
        match (self.state, is_working) {
            (_, true) => State::Running,
            (Noted::Running, false) => State::Killed,
            (Noted::Finished, false) => State::Finished,
            (Noted::Stopped, false) => State::Stopped,
            (Noted::Failed, false) => State::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::now;

    #[test]
    fn a_status_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Status::read(folder.path()), None);
        let session = Session { from_step: 3, started: now(), seconds: 1.5 };
        let status = Status { sessions: vec![session.clone(), session], total_steps: 7, ..Status::default() };
        status.write(folder.path()).unwrap();
        assert_eq!(Status::read(folder.path()), Some(status.clone()));
        assert_eq!(status.seconds(), 3.0);
        // An older or a newer program lacks some fields.
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
}
