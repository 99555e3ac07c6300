//! The report of a run, while it runs and however it ends, and its metrics in other forms.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::support::{done, fixture, kiln, lines, output, stderr, text};
use serde_json::Value;

fn status(run: &Path) -> Value {
    serde_json::from_slice(&fs::read(run.join("status.json")).unwrap()).unwrap()
}

fn page(run: &Path) -> String {
    fs::read_to_string(run.join("report.html")).unwrap()
}

/// The table has the rows of the lines, and a value where they have one, to the last digit.
fn check_table(run: &Path) {
    let [table, lines] = ["metrics.csv", "metrics.jsonl"].map(|file| fs::read_to_string(run.join(file)).unwrap());
    let mut rows = table.lines().map(|row| row.split(',').collect::<Vec<_>>());
    let names = rows.next().unwrap();
    assert_eq!(rows.clone().count(), lines.lines().count());
    for (row, line) in rows.zip(lines.lines()) {
        for (name, cell) in names.iter().zip(&row) {
            let quote = if *name == "kind" { "\"" } else { "" };
            let has = |end: &str| line.contains(&format!("\"{name}\":{quote}{cell}{quote}{end}"));
            let is_same = if cell.is_empty() { !line.contains(&format!("\"{name}\":")) } else { has(",") || has("}") };
            assert!(is_same, "{name} is '{cell}', expected that of {line}");
        }
    }
}

fn events(run: &Path) -> usize {
    let names = fs::read_dir(run).unwrap().flatten().map(|entry| entry.file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("events.out.tfevents.")).count()
}

#[test]
fn a_run_can_be_looked_at_while_it_runs_and_after_it_was_killed_and_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let data = text(at, 8000);
    let run = at.join("run");
    let train =
        ["train", "gpt", "--data", data.to_str().unwrap(), "--out", "run", "--max-steps", "40", "--save-every", "5"];
    let train =
        [&train, ["--evaluate-every", "5", "--context", "16", "--batch-size", "2", "--seed", "5"].as_slice()].concat();
    let mut child = kiln(at, &train).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    while lines(&run.join("metrics.jsonl")).len() < 14 {
        assert!(Instant::now() < deadline && child.try_wait().unwrap().is_none(), "the run does not get on");
        std::thread::sleep(Duration::from_millis(1));
    }
    let running = page(&run);
    assert!(running.contains("state running") && running.contains("chart-loss"), "{running}");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(status(&run)["state"], "running");

    done(at, &["train", "gpt", "--resume", "run"]);
    let (html, noted) = (page(&run), status(&run));
    assert_eq!((&noted["state"], noted["sessions"].as_array().unwrap().len()), (&"finished".into(), 2));
    let step = noted["sessions"][1]["from_step"].as_u64().unwrap();
    assert!(step > 0 && html.contains(&format!("Resumed after step {step}, ")), "{step}");
    for part in [
        "state finished",
        "best bits per byte",
        "step 40 of 40",
        "chart-metric",
        "chart-rate",
        "chart-norm",
        "chart-perplexity",
        "Text of this model",
        "of the model, temperature 0.8",
        "<th scope=\"row\">run.seed</th><td>5</td><td>1</td>",
        "<th scope=\"row\">burn</th><td>0.22",
        "<th scope=\"row\">compiler</th><td>rustc ",
        "All settings",
    ] {
        assert!(html.contains(part), "{part} is missing in the report");
    }
    for part in ["http://", "https://", "NaN", "src=\"/", "href=\"/"] {
        assert!(!html.contains(part), "{part} is in the report");
    }
    check_table(&run);
    assert_eq!(events(&run), 2);

    // A second run with equal settings has the same text and the same table.
    done(at, &train.iter().map(|word| if *word == "run" { "again" } else { word }).collect::<Vec<_>>());
    let written =
        |html: &str| html.split_once("<blockquote>").unwrap().1.split_once("</blockquote>").unwrap().0.to_owned();
    assert_eq!(written(&page(&at.join("again"))), written(&html));
    for file in ["metrics.csv", "metrics.jsonl"] {
        assert_eq!(fs::read(at.join("again").join(file)).unwrap(), fs::read(run.join(file)).unwrap(), "{file}");
    }
}

#[test]
fn a_run_that_fails_has_a_report_that_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    for (part, class) in [("train", "flower"), ("train", "rock"), ("val", "flower"), ("val", "rock")] {
        let class = at.join("photos").join(part).join(class);
        fs::create_dir_all(&class).unwrap();
        for copy in 0..3 {
            fs::copy(fixture("images").join("422.jpg"), class.join(format!("{copy}.jpg"))).unwrap();
        }
    }
    let run = [
        "train",
        "classify",
        "--data",
        "photos",
        "--image-size",
        "32",
        "--batch-size",
        "2",
        "--epochs",
        "2",
        "--width",
        "8",
        "--workers",
        "1",
    ];
    done(at, &[&run, ["--out", "good"].as_slice()].concat());
    let html = page(&at.join("good"));
    assert!(html.contains("Predictions on held-out images") && html.contains(" of 6 are right."), "{html}");
    assert_eq!(html.matches("data:image/png;base64,").count(), 6);
    assert!(html.contains("<th scope=\"row\">run.epochs</th><td>2</td><td>5</td>"));

    // A file that cannot be decoded is found when its batch is loaded.
    let broken = fs::read(fixture("images").join("422.jpg")).unwrap();
    fs::write(at.join("photos/train/rock/2.jpg"), &broken[..broken.len() / 2]).unwrap();
    let failed = output(at, &[&run, ["--out", "bad"].as_slice()].concat());
    assert_eq!(failed.status.code(), Some(1), "{}", stderr(&failed));
    let (html, noted) = (page(&at.join("bad")), status(&at.join("bad")));
    assert_eq!(noted["state"], "failed");
    assert!(html.contains("state failed") && html.contains("2.jpg"), "{html}");
    let listed = output(at, &["runs", "."]);
    let table = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(table.lines().any(|line| line.starts_with("bad ") && line.contains("failed")), "{table}");
}
