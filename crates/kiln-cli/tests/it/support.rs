//! Calling the program, small data for it, and the files of its runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// The program, run in `folder`.
pub(crate) fn kiln(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
    command.args(arguments).current_dir(folder).env_remove("KILN_LOG");
    command
}

pub(crate) fn output(folder: &Path, arguments: &[&str]) -> Output {
    kiln(folder, arguments).output().unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs the program, which must succeed.
#[track_caller]
pub(crate) fn done(folder: &Path, arguments: &[&str]) -> Output {
    let output = output(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    output
}

/// What the program prints on stdout when it succeeds.
#[track_caller]
pub(crate) fn stdout(folder: &Path, arguments: &[&str]) -> String {
    String::from_utf8(done(folder, arguments).stdout).unwrap()
}

/// The lines of JSON that the program prints when it succeeds.
#[track_caller]
pub(crate) fn json_lines(folder: &Path, arguments: &[&str]) -> Vec<Value> {
    stdout(folder, &[arguments, &["--json"]].concat()).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The last line of them: the results of a command.
#[track_caller]
pub(crate) fn results(folder: &Path, arguments: &[&str]) -> Value {
    json_lines(folder, arguments).pop().unwrap()
}

/// Runs the program, which must end with an exit code and one line of error that contains all `parts`, and print nothing.
#[track_caller]
pub(crate) fn refused(folder: &Path, arguments: &[&str], code: i32, parts: &[&str]) {
    let output = output(folder, arguments);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
    let errors: Vec<&str> = text.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{arguments:?}: {text}");
    assert!(!text.contains("panicked"), "{text}");
    for part in parts {
        assert!(errors[0].contains(part), "{arguments:?}: '{}' lacks '{part}'", errors[0]);
    }
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
}

pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

/// The first `bytes` of the book.
pub(crate) fn text(folder: &Path, bytes: usize) -> PathBuf {
    let book = fs::read_to_string(fixture("moby-dick/moby-dick.txt")).unwrap();
    let path = folder.join("text.txt");
    fs::write(&path, &book[..book.floor_char_boundary(bytes)]).unwrap();
    path
}

/// The weights that a run has ended with.
pub(crate) fn weights(run: &Path) -> Vec<u8> {
    fs::read(run.join("model.safetensors")).unwrap()
}

/// The whole lines of a file of JSON lines. None if there is no file yet.
pub(crate) fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// The settings of a run.
pub(crate) fn config(run: &Path) -> String {
    fs::read_to_string(run.join("config.toml")).unwrap()
}

/// A small segmentation in `folder`/run on the data set of the project.
pub(crate) fn segmentation(folder: &Path, options: &[&str]) {
    fs::write(folder.join("small.toml"), "[model]\ndecoder = [8, 8, 8, 8, 4]\n").unwrap();
    let run = ["train", "segment", "--out", "run", "--max-steps", "2", "--batch-size", "2", "--tile", "96"];
    let small = ["--overlap", "0", "--encoder", "mobilenet_v2", "--width", "0.1", "--config", "small.toml"];
    done(folder, &[&run[..], &small, options].concat());
}
