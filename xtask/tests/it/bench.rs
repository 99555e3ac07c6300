//! `xtask bench`, a case of each kind, and `xtask plan` for scripts.

use std::fs;

use super::support::{output, stderr};
use serde_json::{Value, json};

/// The file that a run wrote, whose content the run also printed.
fn results(folder: &std::path::Path, case: &str) -> Value {
    let output = output(folder, &["bench", "--quick", case, "--json", "--out", "bench.json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let written: Value = serde_json::from_slice(&fs::read(folder.join("bench.json")).unwrap()).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&output.stdout).unwrap(), written);
    written
}

#[test]
fn a_step_is_measured_against_burns_loop() {
    let folder = tempfile::tempdir().unwrap();
    let results = results(folder.path(), "resnet/step");
    let provenance = &results["provenance"];
    for field in ["processor", "system", "revision", "rustc", "build", "date"] {
        assert!(provenance[field].as_str().is_some_and(|text| !text.is_empty()), "{field} in {provenance}");
    }
    assert_eq!((&provenance["burn"], &provenance["device"]), (&json!("0.22.1"), &json!("flex")));
    let cases = results["cases"].as_array().unwrap();
    let names: Vec<_> = cases.iter().map(|case| case["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["resnet/burn", "resnet/step"]);
    for case in cases {
        for figure in ["seconds", "ratio"] {
            let [low, median, high] = ["low", "median", "high"].map(|part| case[figure][part].as_f64().unwrap());
            assert!(0.0 < low && low <= median && median <= high, "{figure} in {case}");
        }
        // Parameters, gradients and momentum are 8 MB.
        assert!((8_000_000..100_000_000).contains(&case["peak_bytes"].as_u64().unwrap()), "{case}");
        assert_eq!((&case["rounds"], &case["skipped"], &case["failures"]), (&json!(3), &json!(0), &json!(0)));
    }
    assert_eq!(cases[0]["ratio"]["median"], 1.0);
}

#[test]
fn a_baseline_decides_on_the_exit_status() {
    let folder = tempfile::tempdir().unwrap();
    let mut baseline = results(folder.path(), "function/probe");
    let peak = baseline["cases"][0]["peak_bytes"].as_u64().unwrap();
    assert!(peak > 1, "{baseline}");
    let compared = |threshold: &str| {
        output(
            folder.path(),
            &["bench", "--quick", "function/probe", "--baseline", "bench.json", "--threshold", threshold],
        )
    };
    // Times vary from run to run, bytes do not.
    let same = compared("1e9");
    assert_eq!(same.status.code(), Some(0), "{}", stderr(&same));
    assert!(String::from_utf8_lossy(&same.stdout).contains("asking 100 tensors"));
    baseline["cases"][0]["peak_bytes"] = json!(peak / 2);
    fs::write(folder.path().join("bench.json"), baseline.to_string()).unwrap();
    let worse = compared("50");
    assert_eq!(worse.status.code(), Some(1), "{}", stderr(&worse));
    assert!(stderr(&worse).contains("WORSE"), "{}", stderr(&worse));
}

#[test]
fn wrong_calls_are_refused_before_anything_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("odd.json"), "{\"group\": \"train\"}").unwrap();
    for (arguments, code, part) in [
        (&["bench", "gpt/nothing"][..], 2, "no case 'gpt/nothing'"),
        (&["bench", "--baseline", "absent.json"], 1, "absent.json"),
        (&["bench", "--baseline", "odd.json"], 1, "'odd.json' holds no results"),
        (&["bench", "--rounds", "0"], 2, "--rounds is 0"),
        (&["bench", "--threshold=-1"], 2, "--threshold is -1"),
        (&["bench", "--out", "absent/bench.json"], 2, "absent/bench.json"),
        (&["bench", "--readme"], 2, "no benches/results here"),
    ] {
        let output = output(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(part), "{arguments:?}: {}", stderr(&output));
    }
}

/// Scripts pass the plan that `plan` names to `train`, as text.
#[test]
fn a_plan_in_json_names_its_checkpoints_as_options_do() {
    let folder = tempfile::tempdir().unwrap();
    let output = output(folder.path(), &["plan", "gpt", "--memory", "60MiB", "--json", "--all"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let page: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = page["rows"].as_array().unwrap();
    let texts: Vec<&str> = rows.iter().map(|row| row["checkpointing"].as_str().unwrap()).collect();
    assert!(texts.contains(&"none") && texts.contains(&"every:1"), "{texts:?}");
}
