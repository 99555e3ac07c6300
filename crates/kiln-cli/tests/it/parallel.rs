//! Runs that are divided among replicas and stages: the same numbers, and clear refusals.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::support::{config, done, kiln, lines, refused, stderr, text, weights};

fn train<'a>(data: &'a str, out: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let run = ["train", "gpt", "--data", data, "--out", out, "--seed", "3", "--save-every", "4"];
    let model = ["--context", "16", "--batch-size", "4"];
    run.into_iter().chain(model).chain(more.iter().copied()).collect()
}

fn losses(run: &Path) -> Vec<f64> {
    let steps = lines(&run.join("metrics.jsonl")).into_iter().filter(|line| line["kind"] == "step");
    steps.map(|line| line["loss"].as_f64().unwrap()).collect()
}

#[test]
fn replicas_and_stages_give_the_weights_of_a_run_without() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let data = text(at, 8000);
    let data = data.to_str().unwrap();
    let run = |out: &str, more: &[&str]| {
        done(at, &train(data, out, &[&["--max-steps", "12"], more].concat()));
        (weights(&at.join(out)), losses(&at.join(out)))
    };
    let never = |out: &str, more: &[&str]| run(out, &[&["--exact=never"], more].concat());
    let halves = never("halves", &["--micro-batch", "2"]);
    for (out, more) in [
        ("replicas", &["--replicas", "2"][..]),
        ("sharded", &["--replicas", "2", "--shard-optimizer"]),
        ("stages", &["--stages", "2", "--micro-batch", "2"]),
        ("gpipe", &["--stages", "4", "--micro-batch", "2", "--pipeline-schedule", "gpipe"]),
        ("sequential", &["--stages", "2", "--micro-batch", "2", "--pipeline-schedule", "sequential"]),
        ("both", &["--stages", "2", "--replicas", "2", "--micro-batch", "2"]),
    ] {
        assert!(never(out, more) == halves, "{out}: other losses or weights");
    }
    // Sums in the order of the rows have the same bits in any micro-batches too.
    let (free, _) = run("free", &[]);
    for (out, more) in [
        ("cut", &["--micro-batch", "2"][..]),
        ("in-stages", &["--stages", "2"]),
        ("in-more-stages", &["--stages", "4", "--pipeline-schedule", "gpipe"]),
        ("on-replicas", &["--replicas", "2", "--exact"]),
        ("divided", &["--replicas", "4", "--shard-optimizer", "--exact"]),
    ] {
        assert!(run(out, more).0 == free, "{out}: other weights");
    }

    // A run goes on with another number of replicas, and with stages: the sums of gradients are rounded otherwise.
    let expected = run("whole", &["--replicas", "4", "--shard-optimizer"]);
    let killed = at.join("whole");
    for step in ["step-00000012", "step-00000008"] {
        fs::remove_dir_all(killed.join("checkpoints").join(step)).unwrap();
    }
    done(at, &["train", "gpt", "--resume", "whole", "--replicas", "2", "--stages", "2"]);
    let again = losses(&killed);
    assert_eq!(again[..4], expected.1[..4]);
    for (again, expected) in again.iter().zip(&expected.1) {
        assert!((again - expected).abs() < 1e-4 * expected, "{again}, expected {expected}");
    }
    let config = config(&killed);
    assert!(config.contains("[run.parallel]") && config.contains("replicas = \"4\""), "{config}");
}

#[test]
fn interrupted_replicas_stop_at_the_same_step_and_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let data = text(at, 8000);
    let long = ["--replicas", "2", "--shard-optimizer", "--max-steps", "400"];
    let child = kiln(at, &train(data.to_str().unwrap(), "run", &long))
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let run = at.join("run");
    let deadline = Instant::now() + Duration::from_secs(120);
    while fs::read_to_string(run.join("metrics.jsonl")).unwrap_or_default().lines().count() < 5 {
        assert!(Instant::now() < deadline, "the run does not get on");
        std::thread::sleep(Duration::from_millis(1));
    }
    let kill = format!("kill -INT {}", child.id()); // a builtin of every shell
    assert!(std::process::Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130), "{}", stderr(&ended));
    let steps = losses(&run).len();
    let newest = fs::read_dir(run.join("checkpoints")).unwrap().map(|entry| entry.unwrap().file_name()).max().unwrap();
    assert_eq!(newest.to_str().unwrap(), format!("step-{steps:08}"));
}

#[test]
fn options_that_cannot_be_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let data = text(at, 8000);
    let data = data.to_str().unwrap();
    for (more, parts) in [
        (&["--replicas", "0"][..], &["'0'", "mpi"][..]),
        (&["--replicas", "3"], &["--batch-size is 4", "multiple of the 3 replicas"]),
        (&["--replicas", "many"], &["many"]),
        (&["--shard-optimizer"], &["--shard-optimizer", "--replicas"]),
        (&["--pipeline-schedule", "gpipe"], &["--pipeline-schedule", "--stages"]),
        (&["--stages", "2", "--pipeline-schedule", "zigzag"], &["zigzag", "1f1b"]),
        (&["--stages", "9"], &["9 for 4 blocks"]),
        (&["--stages", "flex,flex", "--replicas", "2"], &["--stages names devices"]),
        (&["--stages", "tpu:0,tpu:1"], &["tpu:0"]),
    ] {
        refused(at, &train(data, "run", more), 2, parts);
        assert!(!at.join("run").exists(), "{more:?}: a run directory was made for nothing");
    }
    refused(at, &["train", "segment", "--replicas", "2"], 2, &["--replicas"]);
    #[cfg(not(feature = "mpi"))]
    refused(at, &train(data, "run", &["--replicas", "mpi"]), 2, &["docs/parallelism.md"]);
}
