//! Plans of steps that are divided among devices, and the memory and the schedule of runs in stages.

use std::fs;
use std::path::Path;

use super::support::{output, stderr, text};
use serde_json::Value;

fn stdout(folder: &Path, arguments: &[&str]) -> String {
    let output = output(folder, arguments);
    assert!(output.status.success(), "{}", stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

const SMALL: [&str; 10] =
    ["plan", "gpt", "--model", "gpt-tiny", "--context", "64", "--vocab", "256", "--precision", "f32"];

#[test]
fn each_device_of_a_division_has_a_row() {
    let folder = tempfile::tempdir().unwrap();
    let divided = ["--memory", "24GiB", "--batch", "32", "--stages", "2", "--replicas", "2", "--shard-optimizer"];
    let table = stdout(folder.path(), &[&SMALL[..], &divided].concat());
    let rows = table.lines().filter(|line| line.starts_with(|first: char| first.is_ascii_digit())).count();
    assert_eq!(rows, 2, "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    assert!(table.contains("optimizer state divided") && table.contains("bubble"), "{table}");

    let json = |more: &[&str]| -> Value {
        let options = [&SMALL[..], &["--memory", "24GiB", "--batch", "32", "--json"], more].concat();
        serde_json::from_str(&stdout(folder.path(), &options)).unwrap()
    };
    let of =
        |plan: &Value, stage: usize, figure: &str| plan["plan"]["loads"][stage]["estimate"][figure].as_u64().unwrap();
    let whole = json(&["--replicas", "2"]);
    let shared = json(&["--replicas", "2", "--shard-optimizer"]);
    assert!(of(&shared, 0, "optimizer_bytes") < of(&whole, 0, "optimizer_bytes") * 6 / 10);
    assert_eq!(whole["plan"]["batch"], 16);
    let gpipe = json(&["--stages", "2", "--schedule", "gpipe"]);
    let flushed = json(&["--stages", "2"]);
    assert_eq!(
        (&gpipe["plan"]["loads"][1]["in_flight"], &flushed["plan"]["loads"][1]["in_flight"]),
        (&4.into(), &1.into())
    );
}

#[test]
fn options_that_do_not_go_together_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |more: &[&str], named: &str| {
        let memory = if more.contains(&"--memory") { &[][..] } else { &["--memory", "24GiB"] };
        let refused = output(folder.path(), &[&SMALL[..], &["--batch", "32"], memory, more].concat());
        assert!(!refused.status.success() && stderr(&refused).contains(named), "{}", stderr(&refused));
    };
    refused(&["--shard-optimizer"], "--replicas");
    refused(&["--schedule", "gpipe"], "--stages");
    refused(&["--stages", "2", "--schedule", "zigzag"], "1f1b");
    refused(&["--stages", "0"], "--stages");
    refused(&["--stages", "100"], "stages");
    refused(&["--replicas", "3"], "multiple");
    refused(&["--stages", "2", "--memory", "1MiB"], "does not fit");
}

#[test]
fn a_run_in_stages_shows_its_schedule_and_what_each_device_holds() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let book = text(at, 20_000);
    let settings = ["--data", book.to_str().unwrap(), "--model", "gpt-tiny", "--context", "32", "--batch-size", "8"];
    let run = ["--stages", "2", "--max-steps", "2", "--json", "--out", "run"];
    let trained = stdout(at, &[&["train", "gpt"], &settings[..], &run].concat());
    let results: Value = serde_json::from_str(trained.lines().last().unwrap()).unwrap();
    let share = |name: &str| results[name].as_f64().unwrap();
    assert!((0.0..1.0).contains(&share("bubble")) && (0.0..1.0).contains(&share("predicted_bubble")), "{results}");
    assert_eq!(results["micro_batch"], 2, "two micro-batches for each stage");
    assert_eq!(results["devices"].as_array().map(Vec::len), Some(2));
    let page = fs::read_to_string(at.join("run/report.html")).unwrap();
    assert_eq!(page.matches("<rect class=\"backward\" x").count(), 8, "two stages, four micro-batches");
    assert!(page.contains("Schedule of the last step") && page.contains("color-scheme"));
    let memory = fs::read_to_string(at.join("run/memory.html")).unwrap();
    assert!(memory.contains("stage 1, predicted"), "{memory}");
    assert!(fs::read_to_string(at.join("run/config.toml")).unwrap().contains("micro_batch = 2"));

    let memory = [&["memory", "gpt"], &settings[..], &["--stages", "2", "--json", "--out", "memory"]].concat();
    let memory: Value = serde_json::from_str(&stdout(at, &memory)).unwrap();
    for stage in 0..2 {
        let predicted = memory["plan"]["loads"][stage]["estimate"]["passes_peak_bytes"].as_f64().unwrap();
        let measured = memory["stages"][stage]["peak_bytes"].as_f64().unwrap();
        assert!((predicted / measured - 1.0).abs() < 0.15, "stage {stage}: {predicted} {measured}");
    }
}

#[test]
fn the_changes_that_memory_lists_have_the_peaks_that_it_says() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let book = text(at, 20_000);
    let data = ["--data", book.to_str().unwrap(), "--model", "gpt-tiny", "--context", "32", "--batch-size", "8"];
    let memory = |more: &[&str]| stdout(at, &[&["memory", "gpt", "--out", "memory"], &data[..], more].concat());
    let shown = memory(&[]);
    assert!(shown.contains("What makes it smaller") && shown.contains("--micro-batch 4"), "{shown}");
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    let page = fs::read_to_string(at.join("memory/memory-gpt.html")).unwrap();
    assert!(page.contains("What you can do about it") && page.contains("data-copy=\"--micro-batch 4\""));

    let report: Value = serde_json::from_str(&memory(&["--json"])).unwrap();
    let peak = |report: &Value| report["prediction"]["peak_bytes"].as_f64().unwrap();
    let suggestions = report["suggestions"].as_array().unwrap();
    assert!(suggestions.len() >= 4, "{suggestions:?}");
    for suggestion in suggestions {
        let option = suggestion["option"].as_str().unwrap();
        let options: Vec<_> = option.split(' ').chain(["--json"]).collect();
        let changed: Value = serde_json::from_str(&memory(&options)).unwrap();
        let said = suggestion["peak_bytes"].as_f64().unwrap();
        assert!((peak(&changed) / said - 1.0).abs() < 1e-3, "{option}: {said}, then {}", peak(&changed));
        assert!(said < peak(&report), "{option}");
    }
}
