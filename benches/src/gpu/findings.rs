//! The findings of an item. Each addition is written to the item's file at once, so that an item that is ended early keeps its findings.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use kiln_runs::replace;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::list::ITEMS;
use crate::provenance::Provenance;

/// The result of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Outcome {
    /// It began, and its end was not recorded.
    Unfinished,
    Pass,
    /// A check failed.
    Fail,
    /// It lacks a requirement.
    Skipped,
    /// It returned an error or panicked.
    Error,
    /// It exceeded its time limit.
    TimedOut,
    /// Its process ended unexpectedly, for example on a lost device.
    Died,
}

impl Outcome {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unfinished => "unfinished",
            Self::Pass => "pass",
            Self::Fail => "FAIL",
            Self::Skipped => "skipped",
            Self::Error => "ERROR",
            Self::TimedOut => "TIMED OUT",
            Self::Died => "DIED",
        }
    }
}

/// The findings of one item.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Findings {
    pub(crate) item: usize,
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) outcome: Outcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    pub(crate) seconds: f64,
    pub(crate) provenance: Provenance,
    pub(crate) checks: Vec<Check>,
    pub(crate) notes: Vec<String>,
    pub(crate) tables: Vec<Table>,
    /// Curves.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) series: BTreeMap<String, Vec<f64>>,
}

/// A statement that holds or does not.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Check {
    pub(crate) what: String,
    pub(crate) pass: bool,
    /// The measured figure, and the expected one.
    pub(crate) says: String,
}

/// A table of figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Table {
    pub(crate) title: String,
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<Vec<Value>>,
}

impl Table {
    /// The cell of `row` in a column; null without such a column.
    pub(crate) fn cell<'a>(&self, row: &'a [Value], column: &str) -> &'a Value {
        let at = self.columns.iter().position(|name| name == column);
        at.and_then(|at| row.get(at)).unwrap_or(&Value::Null)
    }
}

impl Findings {
    pub(crate) fn new(item: usize, provenance: Provenance) -> Self {
        let (name, title) = (ITEMS[item - 1].name.to_owned(), ITEMS[item - 1].title.to_owned());
        let outcome = Outcome::Unfinished;
        let (checks, notes, tables, series) = (vec![], vec![], vec![], BTreeMap::new());
        Self { item, name, title, outcome, reason: None, seconds: 0.0, provenance, checks, notes, tables, series }
    }

    /// The item's file.
    pub(crate) fn path(folder: &Path, item: usize) -> PathBuf {
        folder.join(format!("{item}-{}.json", ITEMS[item - 1].name))
    }

    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read '{}'", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("'{}' is no result of `gpu`", path.display()))
    }

    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        Ok(replace(&Self::path(folder, self.item), text.as_bytes())?)
    }

    /// The number of passed checks, and of all checks.
    pub(crate) fn score(&self) -> (usize, usize) {
        (self.checks.iter().filter(|check| check.pass).count(), self.checks.len())
    }

    /// The outcome that follows from its checks.
    pub(crate) fn verdict(&self) -> Outcome {
        if self.checks.iter().all(|check| check.pass) { Outcome::Pass } else { Outcome::Fail }
    }

    /// Adds a row to the table with that title. The columns are those of the first row.
    pub(crate) fn row(&mut self, title: &str, cells: &[(&str, Value)]) {
        let index = self.tables.iter().position(|table| table.title == title).unwrap_or_else(|| {
            let columns = cells.iter().map(|(column, _)| column.to_string()).collect();
            self.tables.push(Table { title: title.to_owned(), columns, rows: vec![] });
            self.tables.len() - 1
        });
        let table = &mut self.tables[index];
        let cell = |column: &String| cells.iter().find(|(name, _)| name == column).map(|(_, value)| value.clone());
        let row = table.columns.iter().map(|column| cell(column).unwrap_or(Value::Null)).collect();
        table.rows.push(row);
    }
}

/// The findings of a running item, and their file.
pub(crate) struct Record {
    folder: PathBuf,
    pub(crate) findings: Findings,
    started: Instant,
}

impl Record {
    pub(crate) fn begin(folder: &Path, findings: Findings) -> Result<Self> {
        findings.write(folder)?;
        Ok(Self { folder: folder.to_owned(), findings, started: Instant::now() })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn check(&mut self, what: impl Into<String>, pass: bool, says: impl Into<String>) {
        let check = Check { what: what.into(), pass, says: says.into() };
        tracing::info!("{} {}: {}", if pass { "pass" } else { "FAIL" }, check.what, check.says);
        self.findings.checks.push(check);
        self.save();
    }

    pub(crate) fn row(&mut self, title: &str, cells: &[(&str, Value)]) {
        self.findings.row(title, cells);
        self.save();
    }

    pub(crate) fn note(&mut self, text: impl Into<String>) {
        self.findings.notes.push(text.into());
        self.save();
    }

    pub(crate) fn series(&mut self, name: String, values: Vec<f64>) {
        self.findings.series.insert(name, values);
        self.save();
    }

    pub(crate) fn end(&mut self, outcome: Outcome, reason: Option<String>) -> Result<()> {
        (self.findings.outcome, self.findings.reason) = (outcome, reason);
        self.findings.seconds = self.started.elapsed().as_secs_f64();
        self.findings.write(&self.folder)
    }

    fn save(&mut self) {
        self.findings.seconds = self.started.elapsed().as_secs_f64();
        // `end` writes the file again and returns a failure as an error.
        if let Err(error) = self.findings.write(&self.folder) {
            tracing::warn!("{error:#}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn findings_are_on_disk_at_once_and_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut record = Record::begin(folder.path(), Findings::new(2, Provenance::example())).unwrap();
        let read = || Findings::read(&Findings::path(folder.path(), 2)).unwrap();
        assert_eq!((read().outcome, read().score()), (Outcome::Unfinished, (0, 0)));
        record.row("errors", &[("operation", json!("matmul")), ("f32", json!(1e-3))]);
        record.row("errors", &[("f32", json!(2e-3)), ("operation", json!("conv"))]);
        record.check("matmul", true, "1e-3");
        assert_eq!(read().tables[0].rows[1], [json!("conv"), json!(2e-3)]);
        assert_eq!(read().verdict(), Outcome::Pass);
        record.check("conv", false, "2e-3 of 1e-3");
        record.end(read().verdict(), None).unwrap();
        assert_eq!((read().outcome, read().score()), (Outcome::Fail, (1, 2)));
    }
}
