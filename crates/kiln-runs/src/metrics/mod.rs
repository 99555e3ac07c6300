//! The metrics of a run on disk: `metrics.jsonl`, a table for spreadsheets, and event files for TensorBoard.

mod events;
mod lines;
mod tfrecord;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::Error;
use crate::files::replace;
use events::EventFile;
use lines::{Columns, METRICS, rows_until, step, texts};

pub use lines::read;

const CSV: &str = "metrics.csv";

/// Appends each line to `metrics.jsonl`, `metrics.csv` and a file of TensorBoard's events.
pub struct MetricsWriter {
    directory: PathBuf,
    json: File,
    csv: File,
    columns: Columns,
    events: EventFile,
}

impl MetricsWriter {
    /// Opens the metrics in `directory` of a run that continues after step `at`. Entries of later steps are removed.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn after(directory: &Path, at: u64) -> Result<Self, Error> {
        let kept = texts(directory)?.into_iter().filter(|(_, line)| step(line).is_some_and(|step| step <= at));
        let (texts, lines): (Vec<String>, Vec<Value>) = kept.unzip();
        let text: String = texts.iter().flat_map(|text| [text.as_str(), "\n"]).collect();
        replace(&directory.join(METRICS), text.as_bytes())?;
        let table = fs::read_to_string(directory.join(CSV)).unwrap_or_default();
        let (columns, rows) = match rows_until(&table, at) {
            Some((columns, rows)) if rows.len() == lines.len() => {
                (columns, rows.into_iter().flat_map(|row| [row, "\n"]).collect())
            }
            // There is no table, or it is damaged.
            _ => anew(&lines),
        };
        let csv = write(directory, &columns, &rows)?;
        let json = append(&directory.join(METRICS))?;
        let events = EventFile::create(directory, at)?;
        Ok(Self { directory: directory.to_owned(), json, csv, columns, events })
    }

    /// Appends a line: an object with its `kind` ("step" or "evaluation") and its `step`.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn line(&mut self, line: &Value) -> Result<(), Error> {
        writeln!(self.json, "{line}").map_err(self.failed(METRICS))?;
        let before = self.columns.count();
        if self.columns.add(line) {
            // The existing rows have no value in the new columns.
            let path = self.directory.join(CSV);
            let text = fs::read_to_string(&path).map_err(Error::reading(&path))?;
            let empty = ",".repeat(if before == 0 { 0 } else { self.columns.count() - before });
            let rows = text.lines().skip(1).map(|row| format!("{row}{empty}\n"));
            let rows: String = rows.chain([self.columns.row(line)]).collect();
            self.csv = write(&self.directory, &self.columns, &rows)?;
        } else {
            self.csv.write_all(self.columns.row(line).as_bytes()).map_err(self.failed(CSV))?;
        }
        self.events.line(line)
    }

    /// Waits until everything is on disk.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn sync(&self) -> Result<(), Error> {
        self.json.sync_data().map_err(self.failed(METRICS))?;
        self.csv.sync_data().map_err(self.failed(CSV))?;
        self.events.sync()
    }

    /// The error of a file of the directory.
    fn failed(&self, name: &str) -> impl FnOnce(std::io::Error) -> Error + use<> {
        Error::writing(&self.directory.join(name))
    }
}

/// The columns and the rows of a table of `lines`.
fn anew(lines: &[Value]) -> (Columns, String) {
    let mut columns = Columns::default();
    for line in lines {
        columns.add(line);
    }
    let rows = lines.iter().map(|line| columns.row(line)).collect();
    (columns, rows)
}

/// Replaces the table, and opens it to append.
fn write(directory: &Path, columns: &Columns, rows: &str) -> Result<File, Error> {
    let head = if columns.count() == 0 { String::new() } else { columns.head() };
    let text = head + rows;
    let path = directory.join(CSV);
    replace(&path, text.as_bytes())?;
    append(&path)
}

fn append(path: &Path) -> Result<File, Error> {
    OpenOptions::new().append(true).open(path).map_err(Error::writing(path))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn train(folder: &Path, at: u64, to: u64) {
        let mut writer = MetricsWriter::after(folder, at).unwrap();
        for step in at + 1..=to {
            writer.line(&json!({"kind": "step", "step": step, "loss": 0.1 * step as f64})).unwrap();
            if step % 2 == 0 {
                writer.line(&json!({"kind": "evaluation", "step": step, "val_loss": 0.5})).unwrap();
            }
        }
        writer.sync().unwrap();
    }

    #[test]
    fn the_table_of_a_run_that_went_back_is_that_of_one_that_did_not() {
        let [whole, again] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        train(whole.path(), 0, 6);
        train(again.path(), 0, 5);
        // The process was killed in the middle of a line.
        let mut torn = append(&again.path().join(METRICS)).unwrap();
        torn.write_all(b"{\"kind\": \"st").unwrap();
        train(again.path(), 3, 6);
        for file in [METRICS, CSV] {
            let text = |folder: &Path| fs::read_to_string(folder.join(file)).unwrap();
            assert_eq!(text(again.path()), text(whole.path()), "{file}");
        }
        let csv = fs::read_to_string(whole.path().join(CSV)).unwrap();
        assert_eq!(csv.lines().next(), Some("kind,step,loss,val_loss"));
        assert_eq!(csv.lines().count(), 1 + 9);
        let files = fs::read_dir(again.path()).unwrap().flatten();
        let events = files.filter(|entry| entry.file_name().to_string_lossy().starts_with("events.out")).count();
        assert_eq!(events, 2);
    }
}
