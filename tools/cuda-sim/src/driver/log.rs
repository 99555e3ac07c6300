//! The log: one JSON object a line, written at once, so that it is whole even where the process is killed.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

use serde_json::{Value, json};

/// Where records go; nowhere without a file.
#[derive(Debug)]
pub(crate) struct Log {
    file: Option<Mutex<File>>,
    start: Instant,
    trace: bool,
}

impl Log {
    /// A log that appends to `path`, in which `%p` stands for the process id.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub(crate) fn new(path: Option<&Path>, trace: bool) -> io::Result<Self> {
        let open = |path: &Path| OpenOptions::new().create(true).append(true).open(with_process(path));
        let file = path.map(open).transpose()?.map(Mutex::new);
        Ok(Self { file, start: Instant::now(), trace })
    }

    /// Writes a record: `fields` (a JSON object) with the event's name and the seconds since the start.
    pub(crate) fn write(&self, event: &str, fields: Value) {
        let Some(file) = &self.file else { return };
        let mut record = json!({ "t": self.start.elapsed().as_secs_f64(), "event": event });
        if let (Value::Object(record), Value::Object(fields)) = (&mut record, fields) {
            record.extend(fields);
        }
        let mut line = record.to_string();
        line.push('\n');
        let mut file = file.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // a full disk must not stop the program under test
        let _ = file.write_all(line.as_bytes());
    }

    /// Writes a record of what happens all the time, where tracing is on.
    pub(crate) fn trace(&self, event: &str, fields: impl FnOnce() -> Value) {
        if self.trace && self.file.is_some() {
            self.write(event, fields());
        }
    }
}

/// `path` with `%p` replaced by the process id.
pub(crate) fn with_process(path: &Path) -> PathBuf {
    let id = std::process::id().to_string();
    path.to_str().map_or_else(|| path.to_owned(), |text| PathBuf::from(text.replace("%p", &id)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_record_is_one_line_of_json() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log-%p.jsonl");
        let log = Log::new(Some(&path), false).expect("a log");
        log.write("alloc", json!({ "bytes": 5 }));
        log.trace("launch", || json!({}));
        log.write("free", json!({ "name": "two\nlines" }));
        let text = std::fs::read_to_string(with_process(&path)).expect("the log");
        let records: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert_eq!(records.len(), 2);
        assert_eq!((&records[0]["event"], &records[0]["bytes"]), (&json!("alloc"), &json!(5)));
        assert_eq!(records[1]["name"], "two\nlines");
        assert!(records[0]["t"].as_f64() <= records[1]["t"].as_f64());
    }
}
