//! The list of `gpu` runs on the CPU, and errors in a call are reported plainly.

use std::fs;
use std::path::Path;
#[cfg(unix)]
use std::process::{Command, Stdio};
#[cfg(unix)]
use std::time::{Duration, Instant};

use super::support::{output, stderr};
use serde_json::Value;

fn read(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn items_run_on_the_cpu_and_leave_what_they_found() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let run = output(
        at,
        &["gpu", "--device", "flex", "--quick", "--out", "results", "--archive", "all.tar.gz", "1", "2", "7"],
    );
    assert!(run.status.success(), "{}", stderr(&run));
    let results = at.join("results");
    for (file, least) in [("1-facts.json", 4), ("2-arithmetic.json", 30), ("7-out-of-memory.json", 9)] {
        let item = read(&results.join(file));
        assert_eq!((item["outcome"].as_str(), item["provenance"]["device"].as_str()), (Some("pass"), Some("flex")));
        let checks = item["checks"].as_array().unwrap();
        assert!(checks.len() >= least && checks.iter().all(|check| check["pass"] == true), "{file}: {checks:?}");
    }
    assert!(fs::metadata(at.join("all.tar.gz")).unwrap().len() > 1000);
    // Items that run later are added to the existing ones. A missing requirement of an item is not a failure.
    let more = ["3", "10", "--patience", "2", "--python", "no-such-python"];
    let run = output(at, &[&["gpu", "--device", "flex", "--quick", "--out", "results"], &more[..]].concat());
    assert!(run.status.success(), "{}", stderr(&run));
    let items: Vec<u64> = read(&results.join("summary.json"))["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["item"].as_u64().unwrap())
        .collect();
    assert_eq!(items, [1, 2, 3, 7, 10]);
    let torch = read(&results.join("3-torch.json"));
    assert_eq!(torch["outcome"], "skipped");
    assert_eq!(torch["reason"], "no comparison with PyTorch: 'no-such-python' has none");
}

#[test]
fn only_runs_the_parts_that_it_names_and_says_when_there_are_none() {
    let folder = tempfile::tempdir().unwrap();
    let run = |only: &str| {
        let arguments = ["gpu", "10", "--device", "flex", "--quick", "--out", "results", "--only", only];
        let run = output(folder.path(), &arguments);
        (run.status.code(), read(&folder.path().join("results/10-speed.json")))
    };
    let (code, item) = run("tokens, bf16, batch");
    assert_eq!((code, item["checks"].as_array().unwrap().len()), (Some(0), 1), "{item}");
    let (code, item) = run("no such part");
    assert_eq!((code, &item["outcome"]), (Some(1), &"error".into()));
    assert_eq!(item["reason"], "no part's name contains 'no such part'");
}

#[test]
fn warm_runs_the_steps_and_measures_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let run = output(folder.path(), &["gpu", "--warm", "--device", "flex", "--quick", "--out", "results"]);
    let item = read(&folder.path().join("results/10-speed.json"));
    assert_eq!((run.status.code(), &item["outcome"]), (Some(0), &"pass".into()), "{item}");
    assert!(item["checks"].as_array().unwrap().len() > 1 && item["tables"].as_array().unwrap().is_empty(), "{item}");
    assert!(!folder.path().join("results/1-facts.json").exists());
    assert_eq!(output(folder.path(), &["gpu", "--warm", "4"]).status.code(), Some(2));
}

#[test]
fn wrong_calls_are_plain_errors_and_leave_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, says) in [
        (["gpu", "12", "--out", "results"], "there is no item 12, expected 1 to 10"),
        (["gpu", "--patience=0", "--out", "results"], "expected a number from 0.1 to 100"),
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
    assert_eq!(String::from_utf8_lossy(&list.stdout).lines().count(), 10, "{}", stderr(&list));
}

#[cfg(unix)]
#[test]
fn an_interrupt_ends_the_items_and_keeps_what_they_found() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["gpu", "--device", "flex", "--out", "results", "--archive", "all.tar.gz", "9", "10"];
    let mut run = super::support::kiln(folder.path(), &arguments).stderr(Stdio::null()).spawn().unwrap();
    let begun = Instant::now();
    while !folder.path().join("results/9-overhead.json").exists() {
        assert!(begun.elapsed().as_secs() < 60, "the item does not begin");
        std::thread::sleep(Duration::from_millis(20));
    }
    let sent = Command::new("sh").args(["-c", &format!("kill -s INT {}", run.id())]).status().unwrap();
    assert!(sent.success());
    assert_eq!(run.wait().unwrap().code(), Some(130));
    let summary = read(&folder.path().join("results/summary.json"));
    let items = summary["items"].as_array().unwrap();
    assert_eq!(items.len(), 1, "{items:?}");
    assert_eq!((items[0]["outcome"].as_str(), items[0]["reason"].as_str()), (Some("unfinished"), Some("stopped")));
    assert!(folder.path().join("all.tar.gz").exists());
}
