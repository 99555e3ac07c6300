//! `--exact`: the same weights under every budget, also with batch norm.

use std::path::Path;

use super::support::{config, done, refused, stderr, weights};

fn train(at: &Path, out: &str, options: &[&str]) -> String {
    let run = ["train", "resnet", "--batch-size", "256", "--seed", "3", "--out", out];
    stderr(&done(at, &[&run[..], options].concat()))
}

#[test]
fn exact_runs_have_the_same_weights_under_every_budget() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    train(at, "free", &["--max-steps", "4"]);
    let said = train(at, "cut", &["--max-steps", "4", "--memory", "step:12MiB"]);
    assert!(said.contains("micro-batches of") && said.contains("batch norm sees"), "{said}");
    assert!(weights(&at.join("cut")) != weights(&at.join("free")));

    let said = train(at, "streamed", &["--exact", "--max-steps", "4", "--memory", "step:12MiB"]);
    assert!(said.contains("whole batches of 256") && !said.contains("batch norm sees"), "{said}");
    // It goes on within another budget, and memory runs out.
    train(at, "moved", &["--exact", "--max-steps", "2", "--memory", "step:40MiB"]);
    let on =
        ["train", "resnet", "--resume", "moved", "--max-steps", "4", "--memory", "step:14MiB", "--inject-oom", "0.02"];
    let said = stderr(&done(at, &on));
    assert!(said.contains("whole batches of 256") && said.contains("recomputed"), "{said}");
    assert!(config(&at.join("moved")).contains("exact = true"));
    for run in ["streamed", "moved"] {
        assert!(weights(&at.join(run)) == weights(&at.join("free")), "{run}");
    }
}

#[test]
fn what_changes_numbers_is_refused_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    for option in ["--allow-bf16", "--allow-8bit-optimizer"] {
        let run = ["train", "resnet", "--memory", "300MiB", "--exact", option];
        refused(folder.path(), &run, 2, &["--exact", "cannot be used with", option]);
    }
}
