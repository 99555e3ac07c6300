//! `--memory` on the CPU device: what the operating system counts as the memory of the process stays within it.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use super::support::{done, kiln, refused, stderr, text};

const MIB: u64 = 1 << 20;

/// Runs the program, and returns the most bytes that it had in memory, by the system's count.
fn most_resident(at: &Path, arguments: &[&str]) -> u64 {
    let mut child = kiln(at, arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut most = 0;
    let ended = loop {
        let text = fs::read_to_string(&status).unwrap_or_default();
        // A process that has ended and was not waited for has no memory.
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let bytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
        most = most.max(bytes.unwrap_or(0) << 10);
        if let Some(ended) = child.try_wait().unwrap() {
            break ended;
        }
        thread::sleep(Duration::from_millis(1));
    };
    let said = stderr(&child.wait_with_output().unwrap());
    assert!(ended.success() && most > 0, "{arguments:?}: {said}");
    assert!(said.contains("process: at most"), "{arguments:?}: {said}");
    most
}

/// The bytes that a run of these options takes beside a step.
fn beside(at: &Path, options: &[&str]) -> u64 {
    let said = stderr(&done(at, &[options, &["--max-steps", "1", "--memory", "1GiB"]].concat()));
    let (_, rest) = said.split_once("the process takes ").unwrap();
    let (mebibytes, _) = rest.split_once(" MiB of 1.0 GiB beside a step").unwrap();
    mebibytes.parse::<f64>().unwrap() as u64 * MIB
}

#[test]
fn training_evaluating_saving_and_resuming_stay_within_the_budget() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let data = text(at, 60_000).display().to_string();
    let gpt = ["train", "gpt", "--data", &data, "--batch-size", "16", "--evaluate-every", "2", "--save-every", "2"];
    let resnet = ["train", "resnet", "--batch-size", "512", "--evaluate-every", "2", "--save-every", "2"];
    for (name, options) in [("gpt", &gpt[..]), ("resnet", &resnet[..])] {
        let beside = beside(at, options);
        for room in [8 * MIB, 24 * MIB] {
            let (budget, out) = ((beside + room).to_string() + "B", format!("{name}-{room}"));
            let most =
                most_resident(at, &[options, &["--max-steps", "3", "--memory", &budget, "--out", &out]].concat());
            assert!(most <= beside + room, "{out}: {most} of {budget}");
            let most = most_resident(at, &["train", options[1], "--resume", &out, "--max-steps", "5"]);
            assert!(most <= beside + room, "{out}, resumed: {most} of {budget}");
        }
    }
    let parts = ["a budget of 4.0 MiB has no room for a step: the process takes "];
    refused(at, &["train", "gpt", "--data", &data, "--memory", "4MiB"], 1, &parts);
}
