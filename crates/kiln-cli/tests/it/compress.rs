//! Smaller models out of a short run: each command, what it writes, and what it refuses.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::support::{done, output, results, stderr, text, weights};

fn number(results: &Value, name: &str) -> f64 {
    results[name].as_f64().unwrap_or_else(|| panic!("no {name} in {results}"))
}

/// A short run of the default network, narrower.
fn classifier(folder: &Path) {
    let run = ["train", "resnet", "--width", "8", "--max-steps", "16", "--batch-size", "32", "--out", "run"];
    done(folder, &run);
}

/// `eval` gives what the command gave: the last measurement is that of the validation.
fn check_evaluation(folder: &Path, kind: &str, directory: &str, metric: &str, expected: &Value) {
    let evaluated = results(folder, &["eval", kind, "--checkpoint", directory]);
    assert_eq!(evaluated[metric.replace("val_", "test_")], expected[metric], "{directory}");
}

#[test]
fn a_classifier_is_made_smaller_in_every_way() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    classifier(at);
    let was = results(at, &["eval", "classify", "--checkpoint", "run"])["test_accuracy"].clone();
    let short: &[&str] = &["--max-steps", "6"];

    let quantized =
        results(at, &["compress", "quantize", "run", "--inputs", "--calibration-batches", "2", "--out", "q8"]);
    assert!(number(&quantized, "bytes") < 0.3 * number(&quantized, "bytes_before"), "{quantized}");
    assert!((number(&quantized, "val_accuracy") - was.as_f64().unwrap()).abs() < 0.03, "{quantized}");
    let ranges: Value = serde_json::from_slice(&fs::read(at.join("q8/input-ranges.json")).unwrap()).unwrap();
    assert_eq!(ranges.as_object().unwrap().len(), 21, "{ranges}");

    let quantize = ["compress", "quantize", "run", "--bits", "4", "--block", "64", "--inputs", "--out", "q4"];
    let trained = results(at, &[&quantize, short].concat());
    assert!(number(&trained, "bytes") < 0.2 * number(&trained, "bytes_before"), "{trained}");

    let mixed = results(at, &["compress", "quantize", "run", "--budget", "100KiB", "--out", "mixed"]);
    assert!(number(&mixed, "bytes") < 110.0 * 1024.0, "{mixed}");

    let pruned = results(at, &[&["compress", "prune", "run", "--sparsity", "0.75", "--out", "pruned"], short].concat());
    assert!((number(&pruned, "sparsity") - 0.75).abs() < 1e-3, "{pruned}");

    let shrunk = results(at, &[&["compress", "shrink", "run", "--out", "shrunk"], short].concat());
    let share = number(&shrunk, "multiply_adds") / number(&shrunk, "multiply_adds_before");
    assert!((0.4..=0.5).contains(&share), "{shrunk}");

    let distilled = results(at, &[&["compress", "distill", "run", "--width", "4", "--out", "student"], short].concat());
    assert!(number(&distilled, "bytes") < 0.3 * number(&distilled, "bytes_before"), "{distilled}");

    for (directory, found) in [
        ("q8", &quantized),
        ("q4", &trained),
        ("mixed", &mixed),
        ("pruned", &pruned),
        ("shrunk", &shrunk),
        ("student", &distilled),
    ] {
        assert_eq!(found["val_accuracy_before"], was, "{directory}");
        check_evaluation(at, "classify", directory, "val_accuracy", found);
        let page = fs::read_to_string(at.join(directory).join("compression.html")).unwrap();
        assert!(page.contains("before"), "{page}");
    }
    // The merged file gives the same results.
    for directory in ["pruned", "student"] {
        let file = format!("{directory}/model.safetensors");
        let config = format!("{directory}/config.toml");
        let evaluated = results(at, &["eval", "classify", "--checkpoint", &file, "--config", &config]);
        assert_eq!(
            evaluated["test_accuracy"],
            results(at, &["eval", "classify", "--checkpoint", directory])["test_accuracy"]
        );
    }
    // A run that was killed before its first step goes on from the weights that it began with.
    let finished = weights(&at.join("pruned"));
    fs::remove_dir_all(at.join("pruned/checkpoints/step-00000006")).unwrap();
    let resumed = output(at, &["train", "classify", "--resume", "pruned"]);
    assert!(stderr(&resumed).contains("step-00000000"), "{}", stderr(&resumed));
    assert!(weights(&at.join("pruned")) == finished);
    // A smaller model is a run like any other: it can be made smaller again, and it has come to its end.
    let twice = results(at, &["compress", "quantize", "shrunk", "--out", "twice"]);
    check_evaluation(at, "classify", "twice", "val_accuracy", &twice);
    let thrice = results(at, &[&["compress", "prune", "q8", "--out", "thrice"], short].concat());
    assert_eq!(thrice["finished"], true, "{thrice}");
    let resumed = output(at, &["train", "classify", "--resume", "q8"]);
    assert!(!resumed.status.success() && stderr(&resumed).contains("nothing to go on"), "{}", stderr(&resumed));
    for directory in ["pruned", "shrunk", "student", "q4"] {
        let resumed = output(at, &["train", "classify", "--resume", directory]);
        assert!(resumed.status.success(), "{directory}: {}", stderr(&resumed));
    }
}

#[test]
fn a_language_model_learns_in_adapters_and_from_a_teacher() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let data = text(at, 40_000);
    let data = data.to_str().unwrap();
    let train = |out: &str, more: &[&str]| {
        let run =
            ["train", "gpt", "--data", data, "--context", "32", "--batch-size", "8", "--max-steps", "12", "--out", out];
        results(at, &[&run, more].concat())
    };
    let base = train("base", &[]);
    let lora = train("lora", &["--init", "base/checkpoints/best", "--lora", "4", "--learning-rate", "0.01"]);
    assert!(number(&lora, "bits_per_byte") < number(&base, "bits_per_byte"), "{lora}");
    check_evaluation(at, "gpt", "lora", "bits_per_byte", &lora);
    // Adapters only, in a checkpoint with the frozen weights; merged in the file.
    let merged = results(at, &["eval", "gpt", "--checkpoint", "lora/model.safetensors"]);
    assert!((number(&merged, "bits_per_byte") - number(&lora, "bits_per_byte")).abs() < 1e-4, "{merged}");
    let taught = train("taught", &["--teacher", "base", "--teacher-share", "0.5"]);
    check_evaluation(at, "gpt", "taught", "bits_per_byte", &taught);
    let quantized = results(at, &["compress", "quantize", "base", "--out", "q8"]);
    check_evaluation(at, "gpt", "q8", "bits_per_byte", &quantized);
    let student =
        results(at, &["compress", "distill", "base", "--width", "32", "--max-steps", "4", "--out", "student"]);
    check_evaluation(at, "gpt", "student", "bits_per_byte", &student);
}

#[test]
fn what_cannot_be_made_smaller_is_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    classifier(at);
    fs::create_dir(at.join("empty")).unwrap();
    let before = fs::read_dir(at).unwrap().count();
    for (arguments, expected) in [
        (["compress", "quantize", "empty"].as_slice(), ["no run directory", "config.toml"]),
        (&["compress", "quantize", "run", "--bits", "9"], ["9", "2 to 8"]),
        (&["compress", "quantize", "run", "--budget", "1KiB"], ["1024", "at least"]),
        (&["compress", "quantize", "run", "--budget", "much"], ["much", "300MiB"]),
        (&["compress", "quantize", "run", "--skip", "layer9"], ["layer9", "layer1"]),
        (&["compress", "quantize", "run", "--inputs", "--calibrate", "guess"], ["guess", "min-max"]),
        (&["compress", "quantize", "run", "--inputs", "--calibration-batches", "0"], ["0", "at least 1"]),
        (&["compress", "prune", "run", "--sparsity", "1.5"], ["1.5", "0 to below 1"]),
        (&["compress", "prune", "run", "--pattern", "4:2"], ["4:2", "2:4"]),
        (&["compress", "shrink", "run", "--multiply-adds", "0"], ["0", "above 0"]),
        (&["compress", "distill", "run", "--temperature", "0"], ["0", "above 0"]),
        (&["compress", "distill", "run", "--share", "2"], ["2", "from 0 to 1"]),
        (&["compress", "distill", "run", "--model", "alexnet"], ["alexnet", "resnet18"]),
        (&["compress", "prune", "run", "--out", "run"], ["run", "not an empty directory"]),
        (&["train", "resnet", "--temperature", "3"], ["--teacher", "--temperature"]),
        (&["train", "gpt", "--dora"], ["--lora", "--dora"]),
        (&["train", "gpt", "--lora", "0"], ["rank", "at least 1"]),
        (&["train", "gpt", "--lora", "4", "--lora-targets", "attention"], ["attention", "c_attn"]),
        (&["train", "gpt", "--init", "nowhere"], ["nowhere", "no such file"]),
        (&["train", "resnet", "--teacher", "nowhere"], ["nowhere", "config.toml"]),
    ] {
        let refused = output(at, arguments);
        let said = stderr(&refused);
        assert!(!refused.status.success() && expected.iter().all(|part| said.contains(part)), "{arguments:?}: {said}");
        let lines = said.lines().filter(|line| line.starts_with("error")).count();
        assert_eq!(lines, 1, "{arguments:?}: {said}");
    }
    assert_eq!(fs::read_dir(at).unwrap().count(), before, "something was written");
}
