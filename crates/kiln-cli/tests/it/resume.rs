//! Runs that continue with changes, that start from another run, and that end when they stop improving.

use std::fs;
use std::path::Path;

use super::support::{config, done, lines, refused, results, stderr, text, weights};
use serde_json::Value;

const MODEL: [&str; 6] = ["--context", "16", "--batch-size", "4", "--seed", "3"];

/// Runs `train gpt` and returns what it said, which must have succeeded.
fn train(at: &Path, arguments: &[&str]) -> String {
    stderr(&done(at, &[&["train", "gpt"], arguments].concat()))
}

/// Runs a command of `train gpt` that must be refused as a mistake in the call.
#[track_caller]
fn mistake(at: &Path, arguments: &[&str], parts: &[&str]) {
    refused(at, &[&["train", "gpt"], arguments].concat(), 2, parts);
}

/// The steps of a run and their learning rates.
fn steps(run: &Path) -> Vec<(u64, f64)> {
    let steps = lines(&run.join("metrics.jsonl")).into_iter().filter(|line| line["kind"] == "step");
    steps.map(|line| (line["step"].as_u64().unwrap(), line["learning_rate"].as_f64().unwrap())).collect()
}

/// Text to train on, and a settings file with a constant learning rate.
fn prepare(at: &Path) -> String {
    fs::write(at.join("constant.toml"), "[schedule]\nwarmup = 0\ndecay = \"constant\"\npeak = 0.002\n").unwrap();
    text(at, 8000).display().to_string()
}

#[test]
fn a_finished_run_goes_on_and_its_history_says_how() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let data = prepare(at);
    let begin = |out: &str, steps: &str| {
        let run = ["--config", "constant.toml", "--data", &data, "--out", out, "--max-steps", steps];
        train(at, &[&run[..], &MODEL].concat());
        at.join(out)
    };
    let whole = begin("whole", "12");
    let run = begin("run", "8");

    // Nothing is left to do, and the message says how to continue.
    let figures = || {
        let status: Value = serde_json::from_slice(&fs::read(run.join("status.json")).unwrap()).unwrap();
        status["results"].clone()
    };
    let before = (steps(&run), weights(&run), figures());
    assert!(before.2["samples_per_second"].as_f64().unwrap() > 0.0, "{}", before.2);
    let said = train(at, &["--resume", "run"]);
    assert!(said.contains("already finished at step 8; to train further:"), "{said}");
    assert!(said.contains("train gpt --resume run --max-steps 16"), "{said}");
    assert!(before == (steps(&run), weights(&run), figures()));

    // At a constant rate it becomes the longer run, bit for bit.
    let said = train(at, &["--resume", "run", "--max-steps", "12", "--workers", "2", "--keep", "5"]);
    assert!(said.contains("run.max_steps: 8 becomes 12"), "{said}");
    assert_eq!(steps(&run), steps(&whole));
    assert!(weights(&run) == weights(&whole), "other weights");

    // The rate of the call holds from the next step on, and is that of the run from then on.
    train(at, &["--resume", "run", "--max-steps", "20", "--learning-rate", "0.0005", "--clip-norm", "0.5"]);
    let rates = steps(&run);
    assert_eq!(rates.len(), 20);
    assert!(rates[..12].iter().all(|(_, rate)| *rate == 0.002) && rates[12..].iter().all(|(_, rate)| *rate == 0.0005));
    let history = lines(&run.join("history.jsonl"));
    let changes: Vec<(u64, String, Value, Value)> = history[1..]
        .iter()
        .map(|line| {
            let name = line["setting"].as_str().unwrap().to_owned();
            (line["step"].as_u64().unwrap(), name, line["from"].clone(), line["to"].clone())
        })
        .collect();
    let change = |step: u64, name: &str, from: Value, to: Value| (step, name.to_owned(), from, to);
    assert_eq!(
        changes,
        [
            change(8, "run.keep", 3.into(), 5.into()),
            change(8, "run.max_steps", 8.into(), 12.into()),
            change(8, "run.workers", 1.into(), 2.into()),
            change(12, "run.clip_norm", 1.0.into(), 0.5.into()),
            change(12, "run.max_steps", 12.into(), 20.into()),
            change(12, "schedule.peak", 0.002.into(), 0.0005.into()),
        ]
    );
    assert!(history.iter().all(|line| line["version"].is_string() && line["time"].as_str().unwrap().ends_with('Z')));
    assert_eq!((&history[0]["kind"], history.len()), (&Value::from("began"), 7));

    // Another schedule, for the length of the run: its second half falls along a line to a tenth.
    train(at, &["--resume", "run", "--max-steps", "24", "--schedule", "linear", "--warmup", "0.5"]);
    let rates: Vec<f64> = steps(&run)[20..].iter().map(|(_, rate)| *rate).collect();
    assert!(
        rates
            .iter()
            .zip([4.0, 3.0, 2.0, 1.0])
            .all(|(rate, left)| (rate - 0.0005 * (0.1 + 0.9 * left / 12.0)).abs() < 1e-9),
        "{rates:?}"
    );

    // Whole epochs, which the earlier number of steps does not limit; a new plan for a budget.
    let said = train(at, &["--resume", "run", "--epochs", "1", "--memory", "1GiB", "--save-every", "50"]);
    assert!(said.contains("run.max_steps: 24 becomes none") && said.contains("run.memory: none becomes"), "{said}");
    assert!(steps(&run).len() > 24);
    let config = config(&run);
    assert!(config.contains("memory = \"1073741824B\"") && !config.contains("max_steps"), "{config}");
    let said = train(at, &["--resume", "run"]);
    assert!(said.contains("already finished"), "{said}");

    mistake(at, &["--resume", "run", "--max-steps", "4"], &["--max-steps is 4", "has taken"]);
    let options = ["--batch-size", "--seed", "--freeze", "--init", "--context"].map(|option| (option, "8"));
    for (option, value) in options.into_iter().chain([("--optimizer", "adamw8bit"), ("--base-batch", "2")]) {
        mistake(
            at,
            &["--resume", "run", option, value],
            &[&format!("{option} cannot change"), "--from run", "--init run"],
        );
    }
    assert_eq!(lines(&run.join("history.jsonl")).len(), 14, "a refused call was recorded");
}

#[test]
fn options_win_over_what_a_file_says_of_the_length_and_the_beginning() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let data = prepare(at);
    train(
        at,
        &[&["--data", &data, "--out", "a run", "--max-steps", "3", "--base-batch", "1", "--warmup", "0"][..], &MODEL]
            .concat(),
    );
    let highest = steps(&at.join("a run")).iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    assert_eq!(highest, 2.0 * 3e-3, "four times the batch, the root of it in the rate");
    let said = train(at, &["--resume", "a run"]);
    assert!(said.contains("train gpt --resume 'a run' --max-steps 6"), "{said}");

    // A run's own settings as a template: whole epochs are not cut short by its number of steps.
    let said = train(at, &["--config", "a run/config.toml", "--epochs", "1", "--max-steps", "5", "--out", "five"]);
    assert!(said.contains("step 5"), "{said}");
    train(at, &["--config", "a run/config.toml", "--epochs", "1", "--batch-size", "40", "--out", "whole"]);
    assert_eq!(steps(&at.join("whole")).len(), 11);
    // A run that started from another one, as a template for one that begins with weights.
    train(at, &["--from", "a run", "--out", "next", "--max-steps", "2"]);
    train(at, &["--config", "next/config.toml", "--init", "a run", "--out", "begun"]);
    let config = config(&at.join("begun"));
    assert!(config.contains("init = ") && !config.contains("from = "), "{config}");
    mistake(at, &["--from", "a run", "--weights", "five"], &["--init", "--from"]);
    // The file of weights is of the run's last end. If the run went on after it, its newest checkpoint is newer.
    let steps = at.join("a run/status.json");
    let status = fs::read_to_string(&steps).unwrap();
    assert!(status.contains("\"steps\": 3"), "{status}");
    let again = |out: &str| train(at, &["--config", "next/config.toml", "--init", "a run", "--out", out]);
    assert!(again("of the file").contains("tensors taken"));
    fs::write(&steps, status.replace("\"steps\": 3", "\"steps\": 2")).unwrap();
    let said = again("of the checkpoint");
    assert!(said.contains("weights from") && !said.contains("tensors taken"), "{said}");
    assert!(weights(&at.join("of the file")) == weights(&at.join("of the checkpoint")));
}

#[test]
fn a_new_run_starts_from_the_state_of_another_one() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let data = prepare(at);
    let begin = ["--config", "constant.toml", "--data", &data, "--out", "run", "--max-steps", "30"];
    train(at, &[&begin[..], &MODEL].concat());
    let loss = |run: &str, step: usize| lines(&at.join(run).join("metrics.jsonl"))[step]["loss"].as_f64().unwrap();
    let next = ["--from", "run", "--out", "next", "--batch-size", "8", "--max-steps", "4"];
    let said = train(at, &next);
    assert!(said.contains("weights and optimizer state from") && said.contains("step-00000030"), "{said}");
    assert!(loss("next", 0) < loss("run", 0) - 0.5, "{} after {}", loss("next", 0), loss("run", 0));
    assert_eq!(steps(&at.join("next")).iter().map(|(step, _)| *step).collect::<Vec<_>>(), [1, 2, 3, 4]);
    let began = &lines(&at.join("next/history.jsonl"))[0];
    assert!(began["from"].as_str().unwrap().ends_with("/run"), "{began}");
    let next = config(&at.join("next"));
    assert!(next.contains("from = ") && next.contains("batch_size = 8"), "{next}");

    // It is a run like any other: without its first run it goes on, and others start from it.
    fs::rename(at.join("run"), at.join("moved")).unwrap();
    train(at, &["--resume", "next", "--max-steps", "6"]);
    train(at, &["--from", "next/checkpoints/best", "--out", "third", "--max-steps", "2", "--freeze", "wte,h.0"]);
    assert!(config(&at.join("third")).contains("\"h.0\""));

    let other = ["train", "gpt", "--from", "moved", "--out", "sgd", "--optimizer", "sgd"];
    refused(at, &other, 1, &["its optimizer is AdamW", "--init "]);
    assert!(!at.join("sgd").exists());
    mistake(at, &["--from", "moved", "--config", "constant.toml"], &["--config", "--from"]);
    refused(at, &["train", "gpt", "--from", "absent"], 1, &["cannot start from 'absent'"]);
}

#[test]
fn a_run_ends_when_it_gets_no_better_and_keeps_its_best() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let data = prepare(at);
    // Steps so small that no number changes: all evaluations are equal, and the first is the best.
    let still = ["--learning-rate", "1e-30", "--freeze", "wte,wpe", "--freeze", "h", "--evaluate-every", "1"];
    let begin = ["--config", "constant.toml", "--data", &data, "--out", "run", "--max-steps", "30"];
    let arguments = [&["train", "gpt"], &begin[..], &MODEL, &still, &["--patience", "3", "--json"]].concat();
    let ended = done(at, &arguments);
    assert!(stderr(&ended).contains("ended early at step 4, after 3 evaluations"), "{}", stderr(&ended));
    let found: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!((&found["ended_early"], &found["best_step"]), (&true.into(), &1.into()), "{found}");

    let said = train(at, &["--resume", "run"]);
    assert!(said.contains("ended early at step 4") && said.contains("--resume run --patience 6"), "{said}");
    assert_eq!(steps(&at.join("run")).len(), 4);
    let said = train(at, &["--resume", "run", "--patience", "5"]);
    assert!(said.contains("ended early at step 6") && said.contains("run.patience: 3 becomes 5"), "{said}");
    let said = train(at, &["--resume", "run", "--patience", "6", "--quiet"]);
    assert!(said.lines().count() == 1 && said.contains("run: step 7"), "{said}");
    train(at, &["--resume", "run", "--patience", "0", "--max-steps", "8"]);
    assert_eq!(steps(&at.join("run")).len(), 8);

    let figure = |options: &[&str]| {
        results(at, &[&["eval", "gpt", "--checkpoint"], options].concat())["bits_per_byte"].as_f64().unwrap()
    };
    assert_eq!(figure(&["run", "--best"]), found["best_bits_per_byte"].as_f64().unwrap());
    assert_eq!(figure(&["run/checkpoints/best"]), figure(&["run", "--best"]));
    refused(at, &["eval", "gpt", "--checkpoint", "run/model.safetensors", "--best"], 2, &["--best"]);
    fs::remove_dir_all(at.join("run/checkpoints/best")).unwrap();
    refused(at, &["eval", "gpt", "--checkpoint", "run", "--best"], 1, &["has no best checkpoint"]);
}
