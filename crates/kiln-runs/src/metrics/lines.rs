//! `metrics.jsonl`, a JSON object for each step and each evaluation, and `metrics.csv`, the same lines as a table. A step has no value in the
//! columns of evaluations, and vice versa.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::error::Error;

/// The name of the file in the directory of a run.
pub(super) const METRICS: &str = "metrics.jsonl";

/// The lines of the run in `directory`, without an incomplete last one. Names of evaluations that began with `test_` once begin with `val_`.
///
/// # Errors
/// [`Error::File`].
pub fn read(directory: &Path) -> Result<Vec<Value>, Error> {
    Ok(texts(directory)?.into_iter().map(|(_, value)| renamed(value)).collect())
}

fn renamed(line: Value) -> Value {
    let name = |name: String| name.strip_prefix("test_").map(|name| format!("val_{name}")).unwrap_or(name);
    match line {
        Value::Object(line) if line.get("kind").is_some_and(|kind| kind == "evaluation") => {
            Value::Object(line.into_iter().map(|(key, value)| (name(key), value)).collect())
        }
        line => line,
    }
}

/// The lines as text and parsed.
pub(super) fn texts(directory: &Path) -> Result<Vec<(String, Value)>, Error> {
    let path = directory.join(METRICS);
    if !path.exists() {
        return Ok(vec![]);
    }
    let bytes = fs::read(&path).map_err(Error::reading(&path))?;
    let text = String::from_utf8_lossy(&bytes);
    let parsed = |line: &str| Some((line.to_owned(), serde_json::from_str(line).ok()?));
    Ok(text.lines().filter_map(parsed).collect())
}

/// The step that a line belongs to.
pub(super) fn step(line: &Value) -> Option<u64> {
    line["step"].as_u64()
}

/// Columns that come first, in this order.
const FIRST: [&str; 3] = ["kind", "step", "epoch"];

/// The columns of a table, which grow when a line has a new figure.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Columns(Vec<String>);

impl Columns {
    /// Adds the names in `line` that the table lacks. Returns whether there were any: the table must then be rewritten.
    pub(super) fn add(&mut self, line: &Value) -> bool {
        let before = self.0.len();
        let names = || line.as_object().into_iter().flatten().map(|(name, _)| name.as_str());
        let first = FIRST.into_iter().filter(|name| names().any(|other| other == *name));
        for name in first.chain(names()) {
            if !self.0.iter().any(|known| known == name) {
                self.0.push(name.to_owned());
            }
        }
        self.0.len() > before
    }

    /// The columns of an existing table. `None` if the text is not the head of a table.
    pub(super) fn of_head(head: &str) -> Option<Self> {
        let names: Vec<String> = head.split(',').map(str::to_owned).collect();
        (names.len() > 1 && names[1] == "step").then_some(Self(names))
    }

    /// The number of columns.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// The first line of the table.
    pub(super) fn head(&self) -> String {
        let names: Vec<String> = self.0.iter().map(|name| quoted(name)).collect();
        names.join(",") + "\n"
    }

    /// The row of a line.
    pub(super) fn row(&self, line: &Value) -> String {
        let cell = |name: &String| match &line[name] {
            Value::Null => String::new(),
            Value::String(text) => quoted(text),
            other => quoted(&other.to_string()),
        };
        let cells: Vec<String> = self.0.iter().map(cell).collect();
        cells.join(",") + "\n"
    }
}

/// The rows of an existing table up to step `at`, without an incomplete last one, and its columns. The text of the rows is kept: a number
/// that is read and written again may differ in its last digit.
pub(super) fn rows_until(text: &str, at: u64) -> Option<(Columns, Vec<&str>)> {
    let (head, rest) = text.split_once('\n')?;
    let step = |row: &str| row.split(',').nth(1)?.parse::<u64>().ok();
    let whole = rest.split_inclusive('\n').filter_map(|row| row.strip_suffix('\n'));
    let rows = whole.filter(|row| step(row).is_some_and(|step| step <= at)).collect();
    Some((Columns::of_head(head)?, rows))
}

/// A cell, quoted as in RFC 4180.
fn quoted(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rows_of_a_table_are_kept_as_they_stand() {
        let text = "kind,step,loss\nstep,1,0.0012000000000000001\nstep,2,1\nstep,3,1\nstep,2";
        let (columns, rows) = rows_until(text, 2).unwrap();
        assert_eq!((columns.count(), rows), (3, vec!["step,1,0.0012000000000000001", "step,2,1"]));
        assert_eq!(rows_until("", 2), None);
        assert_eq!(rows_until("something else\n", 2), None);
    }

    #[test]
    fn names_of_older_runs_are_those_of_today() {
        let folder = tempfile::tempdir().unwrap();
        let lines = "{\"kind\": \"step\", \"step\": 1}\n{\"kind\": \"evaluation\", \"test_loss\": 0.5, \"val_top5\": 1.0}\n{\"kind\"";
        fs::write(folder.path().join(METRICS), lines).unwrap();
        let evaluation = json!({"kind": "evaluation", "val_loss": 0.5, "val_top5": 1.0});
        assert_eq!(read(folder.path()).unwrap(), [json!({"kind": "step", "step": 1}), evaluation]);
    }

    #[test]
    fn a_new_figure_is_a_new_column() {
        let mut columns = Columns::default();
        let step = json!({"kind": "step", "step": 1, "epoch": 0, "loss": 2.5, "skipped": false});
        let evaluation = json!({"kind": "evaluation", "step": 1, "epochs": 1, "val_loss": null, "note": "a,\"b\""});
        assert!(columns.add(&step) && !columns.add(&step));
        assert_eq!(columns.head(), "kind,step,epoch,loss,skipped\n");
        assert!(columns.add(&evaluation));
        assert_eq!(columns.head(), "kind,step,epoch,loss,skipped,epochs,note,val_loss\n");
        assert_eq!(columns.row(&step), "step,1,0,2.5,false,,,\n");
        assert_eq!(columns.row(&evaluation), "evaluation,1,,,,1,\"a,\"\"b\"\"\",\n");
    }
}
