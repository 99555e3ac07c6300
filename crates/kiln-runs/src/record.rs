//! The notes of a process about its work on a run: `status.json` and `report.html`.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kiln_report::{Samples, Schedule};
use serde_json::{Map, Value};

use crate::clock::now;
use crate::error::Error;
use crate::report::{REPORT, write_report};
use crate::status::{Noted, Session, Status};

/// The largest share of a run's time that is spent on the report, which grows with the run.
const SHARE: f64 = 0.02;

/// What a run is, which its report says.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// The command that trains, if it has a name.
    pub command: String,
    /// Model, data and optimizer in one line.
    pub recipe: String,
    /// The settings of a run for which nothing is said. `None`: those that an earlier process noted.
    pub defaults: Option<Value>,
    /// Facts of the program and the machine, each with its name.
    pub facts: Vec<(String, String)>,
    /// Steps of the whole run.
    pub total_steps: u64,
    /// The predicted peak of a step, in bytes.
    pub predicted_peak_bytes: Option<u64>,
    /// Bytes that a step may take.
    pub limit_bytes: Option<u64>,
}

/// The end of a process's work on a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// All steps were taken, or it ended early.
    Finished,
    /// The user stopped it. Has the command to continue.
    Stopped(String),
    /// It failed. Has the error.
    Failed(String),
}

/// Writes the notes of a process about its run.
pub struct RunRecord {
    directory: PathBuf,
    status: Status,
    started: Instant,
    /// The time of the last report, and how long it took to write.
    reported: Option<(Instant, Duration)>,
}

impl RunRecord {
    /// Notes that this process works on the run in `directory` from step `step` on.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn begin(directory: &Path, about: About, step: u64) -> Result<Self, Error> {
        let mut status = Status::read(directory).unwrap_or_default();
        status.state = Noted::Running;
        status.detail.clear();
        (status.command, status.recipe, status.facts) = (about.command, about.recipe, about.facts);
        status.total_steps = about.total_steps;
        status.sessions.push(Session { from_step: step, started: now(), seconds: 0.0 });
        if let Some(defaults) = about.defaults {
            status.defaults = defaults;
        }
        let known = [("predicted_peak_bytes", about.predicted_peak_bytes), ("limit_bytes", about.limit_bytes)];
        note(&mut status.results, known.map(|(name, bytes)| (name.to_owned(), bytes.into())).into_iter().collect());
        status.write(directory)?;
        Ok(Self { directory: directory.to_owned(), status, started: Instant::now(), reported: None })
    }

    /// Notes the present `results`, and writes the report unless that takes too long.
    ///
    /// # Errors
    /// [`Error::File`], and [`Error::Damaged`] for files that others have changed.
    pub fn refresh(&mut self, results: Map<String, Value>) -> Result<(), Error> {
        self.note(results);
        self.status.write(&self.directory)?;
        let now = Instant::now();
        if self.reported.is_none_or(|(at, took)| is_due(now.duration_since(at), took)) {
            write_report(&self.directory, Samples::default(), None, true)?;
            self.reported = Some((now, now.elapsed()));
        }
        Ok(())
    }

    /// Notes the end of the work. Returns the path of the report. `has_steps` says whether this process took any steps. If it took none,
    /// the report and the figures of steps stay unchanged.
    ///
    /// # Errors
    /// Those of [`refresh`](Self::refresh).
    pub fn end(
        &mut self,
        outcome: Outcome,
        results: Map<String, Value>,
        samples: Samples,
        schedule: Option<Schedule>,
        has_steps: bool,
    ) -> Result<PathBuf, Error> {
        self.note(results.into_iter().filter(|(name, _)| has_steps || !is_of_steps(name)).collect());
        (self.status.state, self.status.detail) = match outcome {
            Outcome::Finished => (Noted::Finished, String::new()),
            Outcome::Stopped(command) => (Noted::Stopped, format!("To go on: {command}")),
            Outcome::Failed(error) => (Noted::Failed, error),
        };
        if !has_steps {
            self.status.sessions.pop();
        }
        self.status.write(&self.directory)?;
        let report = self.directory.join(REPORT);
        if has_steps || !report.exists() {
            write_report(&self.directory, samples, schedule, false)?;
        }
        Ok(report)
    }

    /// Notes figures. Those that this process does not have stay unchanged.
    fn note(&mut self, results: Map<String, Value>) {
        note(&mut self.status.results, results);
        if let Some(session) = self.status.sessions.last_mut() {
            session.seconds = self.started.elapsed().as_secs_f64();
        }
    }
}

/// Whether a figure describes only the steps of one process, such as its speed.
fn is_of_steps(name: &str) -> bool {
    let figures = ["seconds", "final_loss", "peak_bytes", "failed_attempts", "lost_seconds", "samples_per_second"];
    let of_data = ["waiting_for_data", "bad_samples", "repairable_samples", "left_out"];
    figures.contains(&name) || of_data.contains(&name) || name.starts_with("loader_")
}

fn note(noted: &mut Value, results: Map<String, Value>) {
    if !noted.is_object() {
        *noted = Value::Object(Map::new());
    }
    for (name, value) in results.into_iter().filter(|(_, value)| !value.is_null()) {
        noted[name] = value;
    }
}

/// Whether a report that took `took` to write, `since` ago, may be written again.
fn is_due(since: Duration, took: Duration) -> bool {
    took.as_secs_f64() <= SHARE * since.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn begin(folder: &Path, step: u64) -> RunRecord {
        std::fs::write(folder.join("config.toml"), "[run]\nseed = 1\n[model]\nlayers = 4\nwidth = 128\n").unwrap();
        let defaults = (step == 0).then(|| json!({"run": {"seed": 2}, "model": {"layers": 4, "width": 128}}));
        let about = About { command: "gpt".into(), defaults, total_steps: 9, ..About::default() };
        RunRecord::begin(folder, about, step).unwrap()
    }

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap()
    }

    #[test]
    fn a_run_is_noted_from_its_begin_to_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let page = || std::fs::read_to_string(folder.join(REPORT)).unwrap();
        let mut record = begin(folder, 0);
        record.refresh(object(json!({"peak_bytes": 1 << 20, "samples_per_second": null}))).unwrap();
        assert!(page().contains("class=\"state running\"") && page().contains("1.0 MiB"), "{}", page());
        let outcome = Outcome::Stopped("kiln train gpt --resume <run>".into());
        record.end(outcome, Map::new(), Samples::default(), None, true).unwrap();
        assert!(page().contains("state stopped") && page().contains("To go on: kiln train gpt --resume &lt;run&gt;"));

        // Another process continues: it keeps the defaults, and the figures that it does not have.
        let mut record = begin(folder, 4);
        record.end(Outcome::Finished, object(json!({"peak_bytes": null})), Samples::default(), None, true).unwrap();
        let status = Status::read(folder).unwrap();
        assert_eq!(
            (status.state, status.sessions.len(), &status.results["peak_bytes"]),
            (Noted::Finished, 2, &json!(1 << 20))
        );
        assert!(
            page().contains("Resumed after step 4")
                && page().contains("<th scope=\"row\">run.seed</th><td>1</td><td>2</td>")
        );

        // A process without remaining work is not a session.
        let mut record = begin(folder, 9);
        let idle = object(json!({"peak_bytes": 7, "loader_read_seconds": 0.0, "val_loss": 0.5}));
        record.end(Outcome::Finished, idle, Samples::default(), None, false).unwrap();
        let status = Status::read(folder).unwrap();
        assert_eq!((status.sessions.len(), &status.results["peak_bytes"]), (2, &json!(1 << 20)));
        assert_eq!((&status.results["val_loss"], &status.results["loader_read_seconds"]), (&json!(0.5), &Value::Null));
    }

    #[test]
    fn the_report_takes_a_fiftieth_of_the_time_at_most() {
        let seconds = Duration::from_secs_f64;
        assert!(is_due(seconds(10.0), seconds(0.1)) && !is_due(seconds(10.0), seconds(0.3)));
    }
}
