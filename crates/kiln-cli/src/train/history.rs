//! `history.jsonl`: how a run began, and later changes of it.

use anyhow::{Context, Result};
use kiln_data::printable;
use kiln_runs::{HISTORY, now, replace};
use serde::Serialize;
use serde_json::{Value, json};
use toml::Table;

use crate::output::path_json;
use crate::pipelines::RunSettings;
use crate::run_directory::RunDirectory;

/// A setting of a continued run that has a new value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Change {
    /// The name of the setting in the settings file, such as `run.max_steps`.
    pub(super) setting: String,
    /// `None` if it was not set.
    pub(super) from: Option<toml::Value>,
    pub(super) to: Option<toml::Value>,
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text =
            |value: &Option<toml::Value>| value.as_ref().map_or_else(|| "none".to_owned(), toml::Value::to_string);
        write!(f, "{}: {} becomes {}", self.setting, text(&self.from), text(&self.to))
    }
}

/// The settings that differ, by name.
pub(super) fn differences(before: &Table, after: &Table) -> Vec<Change> {
    let mut changes = vec![];
    compare("", before, after, &mut changes);
    changes
}

fn compare(within: &str, before: &Table, after: &Table, changes: &mut Vec<Change>) {
    let added = after.keys().filter(|key| !before.contains_key(*key));
    for key in before.keys().chain(added) {
        let setting = if within.is_empty() { key.clone() } else { format!("{within}.{key}") };
        match (before.get(key), after.get(key)) {
            (Some(toml::Value::Table(before)), Some(toml::Value::Table(after))) => {
                compare(&setting, before, after, changes);
            }
            (from, to) if from != to => changes.push(Change { setting, from: from.cloned(), to: to.cloned() }),
            _ => {}
        }
    }
}

/// Notes how a new run began.
pub(super) fn write_beginning(directory: &RunDirectory, run: &RunSettings) -> Result<()> {
    let mut line = json!({ "kind": "began", "step": 0 });
    for (key, path) in [("init", &run.init), ("from", &run.from)] {
        if let Some(path) = path {
            line[key] = path_json(path);
        }
    }
    append(directory, [line])
}

/// Notes changes of a run that has taken `step` steps.
pub(super) fn write_changes(directory: &RunDirectory, step: u64, changes: &[Change]) -> Result<()> {
    let line = |change: &Change| json!({ "kind": "changed", "step": step, "setting": change.setting, "from": change.from, "to": change.to });
    append(directory, changes.iter().map(line))
}

/// Appends lines, each with the time and the version of the program. The file is replaced as a whole.
fn append(directory: &RunDirectory, lines: impl IntoIterator<Item = Value>) -> Result<()> {
    let path = directory.file(HISTORY);
    let mut text = match path.exists() {
        true => std::fs::read_to_string(&path).with_context(|| format!("cannot read '{}'", printable(&path)))?,
        false => String::new(),
    };
    let time = now(); // of all lines
    for mut line in lines {
        line["time"] = json!(time);
        line["version"] = json!(env!("CARGO_PKG_VERSION"));
        text += &format!("{line}\n");
    }
    Ok(replace(&path, text.as_bytes())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_name_the_setting() {
        let table = |text: &str| text.parse::<Table>().unwrap();
        let before = table("[run]\nmax_steps = 10\nkeep = 3\n[run.parallel]\nreplicas = '2'\n[schedule]\npeak = 0.1\n");
        let after = table("[run]\nmax_steps = 20\nkeep = 3\npatience = 4\n[schedule]\npeak = 0.1\n");
        let shown: Vec<String> = differences(&before, &after).iter().map(Change::to_string).collect();
        assert_eq!(
            shown,
            [
                "run.max_steps: 10 becomes 20",
                "run.parallel: { replicas = \"2\" } becomes none",
                "run.patience: none becomes 4"
            ]
        );
        assert!(differences(&after, &after).is_empty());
    }

    #[test]
    fn lines_are_added_to_those_before() {
        let folder = tempfile::tempdir().unwrap();
        let directory = RunDirectory::existing(folder.path());
        write_beginning(&directory, &RunSettings::new(1, 8)).unwrap();
        let change = Change { setting: "run.keep".into(), from: Some(3.into()), to: Some(5.into()) };
        write_changes(&directory, 7, &[change]).unwrap();
        let text = std::fs::read_to_string(directory.file(HISTORY)).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((&lines[0]["kind"], &lines[1]["kind"]), (&json!("began"), &json!("changed")));
        assert_eq!((&lines[1]["step"], &lines[1]["from"], &lines[1]["to"]), (&json!(7), &json!(3), &json!(5)));
    }
}
