//! The list of `gpu` runs on the CPU, and what is wrong with a call is said plainly.
#![allow(clippy::unwrap_used, reason = "a test ends at what goes wrong")]

mod common;

use std::fs;
use std::path::Path;

use common::{output, stderr};
use serde_json::Value;

fn read(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn items_run_on_the_cpu_and_leave_what_they_found() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let run = output(at, &["gpu", "--device", "flex", "--quick", "--out", "results", "1", "2", "6"]);
    assert!(run.status.success(), "{}", stderr(&run));
    let results = at.join("results");
    for (file, least) in [("1-facts.json", 4), ("2-arithmetic.json", 30), ("6-out-of-memory.json", 9)] {
        let item = read(&results.join(file));
        assert_eq!((item["outcome"].as_str(), item["provenance"]["device"].as_str()), (Some("pass"), Some("flex")));
        let checks = item["checks"].as_array().unwrap();
        assert!(checks.len() >= least && checks.iter().all(|check| check["pass"] == true), "{file}: {checks:?}");
    }
    // An item that runs later joins those that are there.
    let run =
        output(at, &["gpu", "--device", "flex", "--quick", "--out", "results", "9", "--python", "no-such-python"]);
    assert!(run.status.success(), "{}", stderr(&run));
    let items: Vec<u64> = read(&results.join("summary.json"))["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["item"].as_u64().unwrap())
        .collect();
    assert_eq!(items, [1, 2, 6, 9]);
    let notes = read(&results.join("9-peers.json"))["notes"].to_string();
    assert!(notes.contains("no comparison with PyTorch: 'no-such-python' has none"), "{notes}");
}

#[test]
fn wrong_calls_are_plain_errors_and_leave_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, says) in [
        (["gpu", "12", "--out", "results"], "there is no item 12, expected 1 to 9"),
        (["gpu", "--device=tpu:0", "--out", "results"], "unknown device 'tpu:0'"),
        (["gpu", "one", "--out", "results"], "invalid value 'one'"),
    ] {
        let run = output(folder.path(), &arguments);
        let text = stderr(&run);
        assert_eq!(run.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.contains(says) && !text.contains("panicked"), "{arguments:?}: {text}");
    }
    assert!(!folder.path().join("results").exists());
    let list = output(folder.path(), &["gpu", "--list"]);
    assert_eq!(String::from_utf8_lossy(&list.stdout).lines().count(), 9, "{}", stderr(&list));
}
