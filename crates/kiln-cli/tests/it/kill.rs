//! A run that is killed at any moment and resumed has the loss curve of an uninterrupted one.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::support::{done, kiln, output, stderr, text, weights};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const STEPS: &str = "60";

fn train<'a>(data: &'a str, out: &'a str) -> Vec<&'a str> {
    let run = ["train", "gpt", "--data", data, "--out", out, "--max-steps", STEPS, "--save-every", "4", "--seed", "3"];
    let model = ["--context", "16", "--batch-size", "4", "--dropout", "0.1", "--keep", "2"];
    run.into_iter().chain(model).collect()
}

/// A run with everything that has state or could change the order of numbers: a loss scale, micro-batches that do not divide the batch,
/// and recomputed blocks with dropout.
fn train_hard<'a>(data: &'a str, out: &'a str) -> Vec<&'a str> {
    let hard = ["--precision", "f16", "--micro-batch", "3", "--checkpointing", "every:2"];
    let judged = ["--evaluate-every", "7", "--patience", "9"];
    train(data, out).into_iter().chain(hard).chain(judged).collect()
}

fn metrics(run: &Path) -> Vec<String> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Starts the program and kills it (SIGKILL) once the run has `lines` lines of metrics; false when it ended before.
fn kill_at(folder: &Path, arguments: &[&str], run: &Path, lines: usize) -> bool {
    let mut child = kiln(folder, arguments).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "the run failed by itself");
            return false;
        }
        assert!(Instant::now() < deadline, "the run does not get on");
        if metrics(run).len() >= lines {
            child.kill().unwrap();
            child.wait().unwrap();
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn killed_and_resumed_again_and_again_the_curve_is_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let data = text(folder.path(), 8000);
    let data = data.to_str().unwrap();
    done(folder.path(), &train_hard(data, "whole"));
    let expected = metrics(&folder.path().join("whole"));
    assert!(expected.len() > 60, "{} lines", expected.len());

    let run = folder.path().join("killed");
    let mut kills = usize::from(kill_at(folder.path(), &train_hard(data, "killed"), &run, 3));
    for lines in [9, 20, 33, 34, 50] {
        kills += usize::from(kill_at(folder.path(), &["train", "gpt", "--resume", "killed"], &run, lines));
    }
    assert!(kills >= 4, "only {kills} kills hit a running process");
    let last = done(folder.path(), &["train", "gpt", "--resume", "killed", "--json"]);
    assert_eq!(metrics(&run), expected);
    let model = |run: &str| weights(&folder.path().join(run));
    assert!(model("killed") == model("whole"), "the final weights differ");

    // Resuming a run that is complete measures it again and changes nothing.
    let again = done(folder.path(), &["train", "gpt", "--resume", "killed", "--json"]);
    assert_eq!(metrics(&run), expected);
    let figure = |output: &std::process::Output| {
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        json["bits_per_byte"].as_f64().unwrap()
    };
    assert_eq!(figure(&again), figure(&last));

    // The best checkpoint is that of the run without kills.
    let best = |run: &str| {
        let evaluated = done(folder.path(), &["eval", "gpt", "--checkpoint", run, "--best", "--json"]);
        figure(&evaluated)
    };
    assert_eq!(best("killed"), best("whole"));
    assert!(best("whole") <= figure(&last));

    // Measured from its checkpoint, in the precision of the run, it is the same model.
    let evaluated = done(folder.path(), &["eval", "gpt", "--checkpoint", "killed", "--json"]);
    assert_eq!(figure(&evaluated), figure(&last));
}

/// Few steps, and a checkpoint after every other.
fn train_little<'a>(data: &'a str, optimizer: &'a str, out: &'a str) -> Vec<&'a str> {
    let run = ["train", "gpt", "--data", data, "--out", out, "--max-steps", "24", "--save-every", "2", "--seed", "3"];
    let model = ["--context", "16", "--batch-size", "4", "--dropout", "0.1", "--optimizer", optimizer];
    run.into_iter().chain(model).collect()
}

/// Kills that must hit a running process, by two at a time.
const KILLS: usize = 50;

#[test]
fn killed_at_fifty_random_moments_the_curve_is_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let data = text(folder, 8000);
    let data = data.to_str().unwrap();
    let begun = Instant::now();
    let optimizers = ["adamw", "adamw8bit"]; // one for each worker, which are told apart by their seeds
    for optimizer in optimizers {
        done(folder, &train_little(data, optimizer, optimizer));
    }
    // From the start of a process to its end, with two of them at work.
    let lifetime = begun.elapsed().mul_f64(0.75);
    let result = |run: &str| (metrics(&folder.join(run)), weights(&folder.join(run)));

    // Runs until so many of them were killed: where each was, and whether there was something to resume.
    let kill_some = |seed: u64| {
        let optimizer = optimizers[seed as usize];
        let (mut random, expected) = (StdRng::seed_from_u64(seed), result(optimizer));
        let mut lifetime = lifetime;
        let (mut kills, mut resumed, mut tries) = (0, 0, 0);
        while kills < KILLS / 2 {
            tries += 1;
            assert!(tries < 2 * KILLS, "only {kills} of {tries} kills hit a running process");
            let out = format!("run-{seed}-{tries}");
            let run = folder.join(&out);
            let mut child = kiln(folder, &train_little(data, optimizer, &out))
                .stderr(Stdio::null())
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            std::thread::sleep(lifetime.mul_f64(random.random_range(0.0..1.0)));
            let ended = child.try_wait().unwrap().is_some();
            child.kill().unwrap();
            child.wait().unwrap();
            kills += usize::from(!ended);
            // Other work on the machine varies: kills that come too late make later ones earlier.
            lifetime = lifetime.mul_f64(if ended { 0.8 } else { 1.05 });
            // Before its settings were written there was no run.
            let rest = if run.join("config.toml").exists() {
                resumed += usize::from(!ended);
                output(folder, &["train", "gpt", "--resume", &out])
            } else {
                let _ = fs::remove_dir_all(&run);
                output(folder, &train_little(data, optimizer, &out))
            };
            assert!(rest.status.success(), "{out}, killed with {} lines: {}", metrics(&run).len(), stderr(&rest));
            let result = result(&out);
            assert_eq!(result.0, expected.0, "{out}");
            assert!(result.1 == expected.1, "{out}: the final weights differ");
            fs::remove_dir_all(&run).unwrap();
        }
        (kills, resumed)
    };
    let done = std::thread::scope(|scope| {
        let kill_some = &kill_some;
        [0, 1].map(|seed| scope.spawn(move || kill_some(seed))).map(|worker| worker.join().unwrap())
    });
    let [kills, resumed] = [done[0].0 + done[1].0, done[0].1 + done[1].1];
    assert_eq!(kills, KILLS);
    assert!(2 * resumed > KILLS, "{resumed} of {kills} killed runs had begun");
}

#[test]
fn interrupted_from_the_keyboard_a_run_saves_and_says_how_to_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let data = text(folder.path(), 8000);
    let arguments = train(data.to_str().unwrap(), "run");
    let child = kiln(folder.path(), &arguments).stderr(Stdio::piped()).spawn().unwrap();
    let run = folder.path().join("run");
    let deadline = Instant::now() + Duration::from_secs(120);
    while metrics(&run).len() < 5 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    let kill = format!("kill -INT {}", child.id()); // a builtin of every shell
    let status = std::process::Command::new("sh").args(["-c", &kill]).status().unwrap();
    assert!(status.success());
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130), "{}", stderr(&ended));
    assert!(stderr(&ended).contains("kiln train gpt --resume run"), "{}", stderr(&ended));
    assert!(fs::read_dir(run.join("checkpoints")).unwrap().next().is_some());
    assert!(run.join("report.html").exists());

    // A stderr that nobody reads does not end a run.
    let mut quiet = kiln(folder.path(), &["train", "gpt", "--resume", "run"]).stderr(Stdio::piped()).spawn().unwrap();
    drop(quiet.stderr.take());
    assert!(quiet.wait().unwrap().success());
    done(folder.path(), &["train", "gpt", "--resume", "run"]);
    let whole = output(folder.path(), &train(data.to_str().unwrap(), "whole"));
    assert!(whole.status.success());
    assert_eq!(metrics(&run), metrics(&folder.path().join("whole")));
}
