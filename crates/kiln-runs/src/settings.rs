//! Settings of runs, compared with defaults and with each other.

use std::collections::BTreeMap;

use kiln_report::bytes;
use serde_json::Value;

/// Text for a setting that is not set.
const UNSET: &str = "-";

/// Each setting by its path, such as `run.batch_size`, with its value as text.
pub fn flat(settings: &Value) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    add(&mut all, String::new(), settings);
    all
}

fn add(all: &mut BTreeMap<String, String>, path: String, value: &Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                add(all, path, value);
            }
        }
        Value::Null => {}
        other => drop(all.insert(path, text(other))),
    }
}

/// A value in readable form: sizes in a fitting unit, numbers without superfluous digits.
fn text(value: &Value) -> String {
    let Some(text) = value.as_str() else { return value.to_string() };
    match text.strip_suffix('B').and_then(|digits| digits.parse::<u64>().ok()) {
        Some(size) => bytes(size),
        None => text.to_owned(),
    }
}

/// Settings that differ from the defaults: name, value, default.
pub(super) fn changed(settings: &Value, defaults: &Value) -> Vec<[String; 3]> {
    if !defaults.is_object() {
        return vec![];
    }
    let differ = differences(&[flat(settings), flat(defaults)]);
    let row = |(name, values): (String, Vec<String>)| {
        let [value, default]: [String; 2] = values.try_into().ok()?;
        Some([name, value, default])
    };
    differ.into_iter().filter_map(row).collect()
}

/// Settings in which runs differ, each with its value in every run.
pub fn differences(runs: &[BTreeMap<String, String>]) -> Vec<(String, Vec<String>)> {
    let mut names: Vec<&String> = runs.iter().flat_map(BTreeMap::keys).collect();
    names.sort();
    names.dedup();
    let values = |name: &String| -> Vec<String> {
        runs.iter().map(|run| run.get(name).map_or(UNSET, String::as_str).to_owned()).collect()
    };
    let all = names.into_iter().map(|name| (name.clone(), values(name)));
    all.filter(|(_, values)| values.windows(2).any(|pair| pair[0] != pair[1])).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn gpt() -> Value {
        json!({
            "run": {"device": "flex", "batch_size": 8, "precision": "f32", "memory": "314572800B", "data": "/home/a/book.txt"},
            "model": {"layers": 4, "width": 128}, "optimizer": {"adamw": {"beta1": 0.9}}, "schedule": {"peak": 0.003},
        })
    }

    #[test]
    fn settings_that_are_not_the_defaults_are_named() {
        let mut defaults = gpt();
        defaults["run"]["batch_size"] = json!(16);
        defaults["run"]["memory"] = Value::Null;
        let changed = changed(&gpt(), &defaults);
        assert_eq!(
            changed,
            [["run.batch_size", "8", "16"], ["run.memory", "300.0 MiB", "-"]].map(|row| row.map(String::from))
        );
        assert!(super::changed(&gpt(), &Value::Null).is_empty());
    }

    #[test]
    fn runs_with_the_same_settings_do_not_differ() {
        assert_eq!(differences(&[flat(&gpt()), flat(&gpt())]), []);
        let other = json!({"run": {"seed": 2}});
        let all = differences(&[flat(&other), flat(&json!({"run": {"seed": 3}})), flat(&json!({}))]);
        assert_eq!(all, [("run.seed".to_owned(), ["2", "3", "-"].map(String::from).to_vec())]);
    }
}
