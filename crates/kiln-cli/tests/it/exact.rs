//! `--exact`: the same weights under every budget, also with batch norm.

use std::path::Path;

use super::support::{config, done, refused, stderr, weights};

/// Two steps, and then two more with other options. Returns what both have said.
fn train(at: &Path, out: &str, [first, then]: [&[&str]; 2]) -> [String; 2] {
    let run = ["train", "resnet", "--batch-size", "256", "--seed", "3", "--max-steps", "2", "--out", out];
    let first = stderr(&done(at, &[&run[..], first].concat()));
    let run = ["train", "resnet", "--resume", out, "--max-steps", "4"];
    [first, stderr(&done(at, &[&run[..], then].concat()))]
}

#[test]
fn exact_runs_have_the_same_weights_under_every_budget() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    train(at, "free", [&[], &[]]);
    let [said, _] = train(at, "cut", [&["--memory", "step:12MiB"], &[]]);
    assert!(said.contains("micro-batches of") && said.contains("batch norm sees"), "{said}");
    assert!(weights(&at.join("cut")) != weights(&at.join("free")));

    // It goes on within another budget, in which memory runs out.
    let budgets: [&[&str]; 2] =
        [&["--exact", "--memory", "step:40MiB"], &["--memory", "step:14MiB", "--inject-oom", "0.02"]];
    let [_, said] = train(at, "exact", budgets);
    assert!(said.contains("whole batches of 256") && said.contains("streamed"), "{said}");
    assert!(!said.contains("batch norm sees"), "{said}");
    assert!(config(&at.join("exact")).contains("exact = true"));
    assert!(weights(&at.join("exact")) == weights(&at.join("free")));
}

#[test]
fn what_changes_numbers_is_refused_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    for option in ["--allow-bf16", "--allow-8bit-optimizer"] {
        let run = ["train", "resnet", "--memory", "300MiB", "--exact", option];
        refused(folder.path(), &run, 2, &["--exact", "cannot be used with", option]);
    }
}
