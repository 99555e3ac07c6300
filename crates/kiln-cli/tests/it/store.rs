//! Runs that are larger than their memory: they stream blocks from their own directory, with the same bits.

use std::fs;
use std::path::Path;

use super::support::{config, done, refused, stderr, text, weights};

/// A small decoder in batches of 4.
fn train(at: &Path, options: &[&str]) -> String {
    let model = ["train", "gpt", "--context", "32", "--batch-size", "4", "--seed", "3"];
    stderr(&done(at, &[&model[..], options].concat()))
}

fn resume(at: &Path, run: &str, options: &[&str]) -> String {
    stderr(&done(at, &[&["train", "gpt", "--resume", run], options].concat()))
}

#[test]
fn a_run_that_does_not_fit_streams_from_its_own_directory() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let data = text(at, 8000).display().to_string();
    let begin = |out: &str, steps: &str, options: &[&str]| {
        train(at, &[&["--data", &data, "--out", out, "--max-steps", steps, "--micro-batch", "2"], options].concat())
    };
    begin("whole", "4", &[]);
    resume(at, "whole", &["--max-steps", "6"]);
    resume(at, "whole", &["--max-steps", "9"]);
    let said = begin("run", "4", &["--memory", "step:5MiB"]);
    assert!(said.contains("are in run/store") && said.contains("streamed"), "{said}");
    let run = at.join("run");
    assert!(!config(&run).contains("store ="), "a run that is moved finds its store: {}", config(&run));

    // Moved elsewhere it goes on from its store.
    fs::rename(&run, at.join("moved")).unwrap();
    let said = resume(at, "moved", &["--max-steps", "6"]);
    assert!(said.contains("going on from moved/store"), "{said}");
    // Without its store it goes on from a checkpoint.
    fs::remove_dir_all(at.join("moved/store")).unwrap();
    let said = resume(at, "moved", &["--max-steps", "9"]);
    assert!(said.contains("going on from moved/checkpoints/step-00000006"), "{said}");
    assert!(weights(&at.join("moved")) == weights(&at.join("whole")));
}

#[test]
fn a_run_that_no_longer_fits_goes_on_from_a_store() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let data = text(at, 8000).display().to_string();
    for out in ["whole", "run"] {
        train(at, &["--data", &data, "--out", out, "--max-steps", "5", "--memory", "step:40MiB"]);
    }
    resume(at, "whole", &["--max-steps", "9"]);
    // Other programs take memory: a step finds less than it was planned for.
    let settings = config(&at.join("run"));
    let less = settings.lines().map(|line| if line.starts_with("memory = ") { "memory = \"step:7MiB\"" } else { line });
    fs::write(at.join("run/config.toml"), less.collect::<Vec<_>>().join("\n")).unwrap();
    let said = resume(at, "run", &["--max-steps", "9", "--wait-for-memory", "0"]);
    assert!(said.contains("the batch does not fit into memory after"), "{said}");
    assert!(said.contains("goes on with its parameters in run/store"), "{said}");
    assert!(said.contains("run.checkpointing: \"none\" becomes \"stream\""), "{said}");
    assert!(weights(&at.join("run")) == weights(&at.join("whole")));
}

#[test]
fn a_run_that_is_refused_leaves_no_directory() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let data = text(at, 8000).display().to_string();
    let run = |out: &str, code, parts: &[&str]| {
        refused(at, &["train", "gpt", "--data", &data, "--memory", "step:100KiB", "--out", out], code, parts);
    };
    run("new/run", 1, &["a step does not fit into 100.0 KiB: the least is "]);
    assert!(!at.join("new").exists());
    // One that was there stays.
    fs::create_dir(at.join("empty")).unwrap();
    run("empty", 1, &["a step does not fit"]);
    assert_eq!(fs::read_dir(at.join("empty")).unwrap().count(), 0);
    fs::write(at.join("empty/file"), "").unwrap();
    run("empty", 2, &["'empty' exists and is not an empty directory"]);
    assert!(at.join("empty/file").exists());
}

#[test]
fn weights_of_a_file_go_to_a_store_with_the_bits_of_a_run_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let data = text(at, 8000).display().to_string();
    let begin = |out: &str, options: &[&str]| {
        train(at, &[&["--data", &data, "--out", out, "--max-steps", "2", "--micro-batch", "2"], options].concat())
    };
    begin("first", &["--learning-rate", "0.01"]); // other weights than those at a start
    let in_memory = begin("memory", &["--init", "first"]);
    let streamed = begin("store", &["--init", "first", "--memory", "step:5MiB"]);
    for said in [&in_memory, &streamed] {
        assert!(said.contains("/first: 52 of 52 tensors taken"), "{said}");
    }
    assert!(streamed.contains("streamed one by one from a store"), "{streamed}");
    assert!(weights(&at.join("memory")) == weights(&at.join("store")));
    // A file that has changed meanwhile is not read again.
    fs::write(at.join("first/model.safetensors"), "changed").unwrap();
    assert!(resume(at, "store", &["--max-steps", "3"]).contains("going on from store/store"));
    refused(at, &["train", "gpt", "--data", &data, "--init", "first", "--out", "no"], 1, &["not a safetensors file"]);
}

/// Running statistics are no parameters: they stay in memory.
#[test]
fn buffers_of_a_file_are_taken_by_a_run_that_streams() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let begin = |out: &str, options: &[&str]| {
        let model = ["train", "resnet", "--batch-size", "32", "--max-steps", "2", "--out", out];
        stderr(&done(at, &[&model[..], options].concat()))
    };
    begin("first", &[]);
    begin("memory", &["--init", "first"]);
    let streamed = begin("store", &["--init", "first", "--checkpointing", "stream"]);
    assert!(streamed.contains("102 of 102 tensors taken") && at.join("store/store").is_dir(), "{streamed}");
    assert!(weights(&at.join("memory")) == weights(&at.join("store")));
}
