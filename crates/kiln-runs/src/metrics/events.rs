//! `events.out.tfevents.*`: the metrics for TensorBoard. Each process that works on a run writes a file of its own.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::lines::step;
use super::tfrecord::Event;
use crate::error::Error;

/// The beginning of the files' names, by which TensorBoard finds them.
const PREFIX: &str = "events.out.tfevents.";

/// The figures of a step that TensorBoard shows.
const OF_STEP: [&str; 3] = ["loss", "learning_rate", "gradient_norm"];

/// A file of events that grows.
pub(super) struct EventFile {
    path: PathBuf,
    file: File,
}

impl EventFile {
    /// A new file in `directory` for a run that continues after `step`. Points of later steps in older files no longer count.
    pub(super) fn create(directory: &Path, step: u64) -> Result<Self, Error> {
        let now = now();
        let number = later_than(now as u64, names(directory));
        let path = directory.join(format!("{PREFIX}{number:010}.kiln.{}", std::process::id()));
        let file = OpenOptions::new().create_new(true).append(true).open(&path);
        let mut file = Self { file: file.map_err(Error::writing(&path))?, path };
        file.write(&[Event::at(now, 0).with_version(), Event::at(now, step + 1).with_session_start()])?;
        Ok(file)
    }

    /// Appends the figures of a line of metrics.
    pub(super) fn line(&mut self, line: &Value) -> Result<(), Error> {
        let scalars = scalars(line);
        match step(line) {
            Some(step) if !scalars.is_empty() => {
                let named = scalars.iter().map(|(name, value)| (name.as_str(), *value));
                self.write(&[Event::at(now(), step).with_scalars(named)])
            }
            _ => Ok(()),
        }
    }

    /// Waits until everything is on disk.
    pub(super) fn sync(&self) -> Result<(), Error> {
        self.file.sync_data().map_err(Error::writing(&self.path))
    }

    fn write(&mut self, events: &[Event]) -> Result<(), Error> {
        // One call writes all: a reader seldom sees half a record.
        let records: Vec<u8> = events.iter().flat_map(Event::record).collect();
        self.file.write_all(&records).map_err(Error::writing(&self.path))
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// The names of the existing event files.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(PREFIX)).collect()
}

/// The number of a new file: the time in seconds, or the newest file's number plus one. TensorBoard reads files in the order of their
/// names.
fn later_than(now: u64, names: Vec<String>) -> u64 {
    let number = |name: &String| name.strip_prefix(PREFIX)?.split('.').next()?.parse::<u64>().ok();
    let newest = names.iter().filter_map(number).max();
    newest.map_or(now, |newest| now.max(newest + 1))
}

/// The values of a line under the names that TensorBoard groups: `train/loss`, `val/accuracy`.
fn scalars(line: &Value) -> Vec<(String, f64)> {
    let value = |name: &str| line[name].as_f64();
    match line["kind"].as_str() {
        Some("step") if line["skipped"] != true => {
            OF_STEP.iter().filter_map(|name| Some((format!("train/{name}"), value(name)?))).collect()
        }
        Some("evaluation") => {
            let names = line.as_object().into_iter().flatten().map(|(name, _)| name.as_str());
            let figures = names.filter(|name| !["step", "epochs"].contains(name));
            let titled = |name: &str| format!("val/{}", name.strip_prefix("val_").unwrap_or(name));
            figures.filter_map(|name| Some((titled(name), value(name)?))).collect()
        }
        _ => vec![],
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_grouped_into_training_and_validation() {
        let line = json!({"kind": "step", "step": 3, "loss": 2.0, "learning_rate": 0.1, "gradient_norm": null, "skipped": false});
        assert_eq!(scalars(&line), [("train/loss".to_owned(), 2.0), ("train/learning_rate".to_owned(), 0.1)]);
        let line = json!({"kind": "evaluation", "step": 3, "epochs": 1, "val_accuracy": 0.5, "bits_per_byte": 2.0});
        assert_eq!(scalars(&line), [("val/bits_per_byte".to_owned(), 2.0), ("val/accuracy".to_owned(), 0.5)]);
        assert_eq!(scalars(&json!({"kind": "step", "step": 3, "loss": 2.0, "skipped": true})), []);
    }

    #[test]
    fn a_newer_file_has_a_later_name() {
        let names = |numbers: &[&str]| numbers.iter().map(|number| format!("{PREFIX}{number}.kiln.7")).collect();
        assert_eq!(later_than(100, names(&[])), 100);
        assert_eq!(later_than(100, names(&["0000000100", "0000000050"])), 101);
        assert_eq!(later_than(100, names(&["0000000200", "else"])), 201);
    }
}
