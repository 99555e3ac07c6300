//! Runs are listed and compared, whatever state they are in.

use std::fs;
use std::path::Path;

use super::support::{done, output, refused, results, stderr, text};

fn train(folder: &Path, data: &str, out: &str, options: &[&str]) {
    let run = ["train", "gpt", "--data", data, "--out", out, "--max-steps", "6", "--evaluate-every", "3"];
    let run = [&run, ["--context", "16", "--batch-size", "4"].as_slice(), options].concat();
    done(folder, &run);
}

#[test]
fn runs_are_listed_and_compared() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let data = text(at, 8000);
    let data = data.to_str().unwrap();
    train(at, data, "runs/first", &[]);
    train(at, data, "runs/second", &["--learning-rate", "0.001", "--memory", "96MiB"]);
    // A process that was killed has noted no end.
    let status = at.join("runs/first/status.json");
    let killed = fs::read_to_string(&status).unwrap().replace("\"finished\"", "\"running\"");
    fs::write(&status, killed).unwrap();
    // Directories that are no runs, and one that is damaged.
    fs::create_dir_all(at.join("runs/notes")).unwrap();
    fs::create_dir_all(at.join("runs/broken")).unwrap();
    fs::write(at.join("runs/broken/config.toml"), "[run\n").unwrap();

    let listed = done(at, &["runs"]);
    let table = String::from_utf8(listed.stdout.clone()).unwrap();
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 3, "{table}");
    assert!(lines[0].starts_with("RUN") && lines[0].contains("METRIC"), "{table}");
    assert!(lines[1].starts_with("second ") && lines[1].contains("finished") && lines[1].contains("bits/B"), "{table}");
    assert!(lines[2].starts_with("first ") && lines[2].contains("killed"), "{table}");
    let said = stderr(&listed);
    assert!(said.contains("runs/notes' is no run") && said.contains("broken/config.toml' is damaged"), "{said}");

    let json = results(at, &["runs", "runs", "--sort", "name"]);
    assert_eq!((&json[0]["name"], &json[0]["status"]), (&"first".into(), &"killed".into()));
    assert_eq!((&json[1]["step"], &json[1]["total_steps"]), (&6.into(), &6.into()));
    let best = json[1]["best"].as_f64().unwrap();
    assert!(best > 1.0 && best <= json[1]["last"].as_f64().unwrap());
    assert!(json[1]["peak_bytes"].as_u64().unwrap() > 1 << 20 && json[1]["seconds"].as_f64().unwrap() > 0.0);

    let compared = done(at, &["compare", "runs/first", "runs/second", "runs/broken", "--out", "both.html"]);
    let table = String::from_utf8(compared.stdout.clone()).unwrap();
    let rate = table.lines().find(|line| line.starts_with("schedule.peak")).unwrap();
    assert!(rate.contains("0.003") && rate.contains("0.001"), "{table}");
    assert!(!table.contains("run.seed"), "{table}");
    assert!(stderr(&compared).contains("broken"), "{}", stderr(&compared));
    let page = fs::read_to_string(at.join("both.html")).unwrap();
    for part in ["chart-bits_per_byte", "chart-loss", "schedule.peak", "first", "second"] {
        assert!(page.contains(part), "{part} is missing");
    }
}

#[test]
fn what_is_no_run_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let empty = output(at, &["runs"]);
    assert!(empty.status.success() && stderr(&empty).contains("no runs in 'runs'"), "{}", stderr(&empty));
    refused(at, &["runs", "elsewhere"], 2, &["'elsewhere' does not exist"]);
    refused(at, &["compare", "elsewhere"], 2, &["none of these is a run"]);
    assert_eq!(fs::read_dir(at).unwrap().count(), 0, "something was written");
}
