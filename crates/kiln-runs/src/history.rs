//! The events of a run between its steps: where it was resumed, and which settings changed.

use std::fs;
use std::path::Path;

use kiln_report::{Mark, grouped};
use serde_json::Value;

use super::status::Session;

/// The start of a run, and changes of its settings, with a JSON object in each line.
pub const HISTORY: &str = "history.jsonl";

/// The moments that charts mark.
pub(super) fn marks(directory: &Path, sessions: &[Session]) -> Vec<Mark> {
    let text = fs::read_to_string(directory.join(HISTORY)).unwrap_or_default();
    let lines = text.lines().filter_map(|line| serde_json::from_str(line).ok());
    of(sessions, lines)
}

fn of(sessions: &[Session], changes: impl Iterator<Item = Value>) -> Vec<Mark> {
    let resumed = sessions.iter().skip(1).map(|session| {
        let (step, date) = (session.from_step, session.started.replace('T', " ").replace('Z', " UTC"));
        Mark { step, name: "resumed".into(), text: format!("Resumed after step {}, {date}.", grouped(step)) }
    });
    let mut marks: Vec<Mark> = resumed.collect();
    for line in changes.filter(|line| line["kind"] != "began") {
        let Some(step) = line["step"].as_u64() else { continue };
        let text = format!("After step {}: {}.", grouped(step), description(&line));
        match marks.iter_mut().find(|mark| mark.step == step) {
            Some(mark) => {
                mark.name = "changed".into();
                mark.text = format!("{} {text}", mark.text);
            }
            None => marks.push(Mark { step, name: "changed".into(), text }),
        }
    }
    marks.sort_by_key(|mark| mark.step);
    // A run that was resumed twice after one step has one mark there.
    marks.dedup_by(|later, first| {
        let is_same = later.step == first.step;
        if is_same && later.name == "changed" {
            first.name = later.name.clone();
        }
        if is_same {
            first.text = format!("{} {}", first.text, later.text);
        }
        is_same
    });
    marks
}

/// Describes a change of a setting.
fn description(line: &Value) -> String {
    let words = |value: &Value| match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => text.clone(),
        value => value.to_string(),
    };
    format!("{}: {} becomes {}", words(&line["setting"]), words(&line["from"]), words(&line["to"]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_mark_stands_where_a_run_was_resumed_or_changed() {
        let session = |from_step| Session { from_step, started: "2026-11-21T08:30:00Z".into(), seconds: 1.0 };
        let changes = [
            json!({"kind": "changed", "step": 300, "setting": "schedule.peak", "from": 0.1, "to": 0.05, "version": "0.1.0"}),
            json!({"no": "step"}),
            json!({"kind": "began", "step": 0, "init": "a.safetensors"}),
        ];
        let marks = of(&[session(0), session(120), session(300), session(300)], changes.into_iter());
        let places: Vec<_> = marks.iter().map(|mark| (mark.step, mark.name.as_str())).collect();
        assert_eq!(places, [(120, "resumed"), (300, "changed")]);
        assert_eq!(marks[0].text, "Resumed after step 120, 2026-11-21 08:30:00 UTC.");
        assert!(marks[1].text.contains("After step 300: schedule.peak: 0.1 becomes 0.05."), "{}", marks[1].text);
        // A run that was resumed before its first step has no changes.
        let began = json!({"kind": "began", "step": 0, "init": "a.safetensors"});
        let marks = of(&[session(0), session(0)], [began].into_iter());
        assert_eq!((marks.len(), marks[0].name.as_str()), (1, "resumed"));
        assert!(of(&[session(0)], std::iter::empty()).is_empty());
    }
}
