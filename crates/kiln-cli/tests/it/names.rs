//! Paths that are not UTF-8, and names that would control a terminal.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Output;

use serde_json::Value;

use super::predict::photos;
use super::support::{done, fixture, kiln, output, segmentation, stderr, text};

/// A name that is not UTF-8: `café` in Latin-1, and `end`.
fn latin1(end: &str) -> OsString {
    OsStr::from_bytes(&[b"caf\xe9", end.as_bytes()].concat()).to_owned()
}

/// Runs the program with `path` among its arguments.
fn with_path(folder: &Path, before: &[&str], path: &OsStr, after: &[&str]) -> Output {
    kiln(folder, before).arg(path).args(after).output().unwrap()
}

/// The lines of JSON of a call that succeeded.
#[track_caller]
fn told(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", stderr(output));
    let text = std::str::from_utf8(&output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Asserts that `text` has no control characters except line ends.
#[track_caller]
fn assert_plain(text: &[u8]) {
    let text = std::str::from_utf8(text).unwrap();
    assert!(!text.chars().any(|character| character.is_control() && character != '\n'), "{text:?}");
}

const SMALL: [&str; 7] = ["--context", "8", "--max-steps", "1", "--batch-size", "2", "--json"];

#[test]
fn a_path_that_no_settings_can_hold_is_refused_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    text(at, 4000);
    let bad = latin1("");
    fs::create_dir(at.join(latin1(".data"))).unwrap();
    fs::copy(at.join("text.txt"), at.join(latin1(".txt"))).unwrap();
    let gpt = ["train", "gpt", "--data", "text.txt", "--out"];
    done(at, &[&gpt[..], &["run"], &SMALL].concat());
    let files = fs::read_dir(at).unwrap().count();
    let calls: [(&[&str], &OsStr, &[&str]); 8] = [
        (&gpt, &bad, &SMALL),
        (&["train", "classify", "--max-steps", "1", "--out"], &bad, &[]),
        (&["train", "segment", "--max-steps", "1", "--out"], &bad, &[]),
        (&["compress", "quantize", "run", "--out"], &bad, &["--json"]),
        (&["train", "gpt", "--data"], &latin1(".txt"), &SMALL),
        (&["train", "gpt", "--tokenizer"], &latin1(".data"), &SMALL),
        (&["train", "gpt", "--init"], &latin1(".data"), &SMALL),
        (&["compress", "distill"], &bad, &["--max-steps", "1"]),
    ];
    for (before, path, after) in calls {
        if before == ["compress", "distill"] {
            fs::rename(at.join("run"), at.join(&bad)).unwrap();
        }
        let refused = with_path(at, before, path, after);
        let error = stderr(&refused);
        assert_eq!(refused.status.code(), Some(2), "{before:?}: {error}");
        assert!(error.contains("not UTF-8") && !error.contains("panicked"), "{before:?}: {error}");
        assert_eq!(fs::read_dir(at).unwrap().count(), files, "{before:?} wrote something");
    }
}

#[test]
fn paths_that_are_not_utf8_are_written_with_the_replacement_character() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    text(at, 4000);
    let (run, shown) = (latin1(""), "caf\u{fffd}");
    done(at, &[&["train", "gpt", "--data", "text.txt", "--out", "run"][..], &SMALL].concat());
    fs::rename(at.join("run"), at.join(&run)).unwrap();

    let resumed = with_path(at, &["train", "gpt", "--resume"], &run, &["--max-steps", "2", "--json"]);
    assert_eq!(told(&resumed)[0]["run"], shown);
    assert!(stderr(&resumed).contains("is not UTF-8"), "{}", stderr(&resumed));
    for file in ["status.json", "report.html", "model.safetensors"] {
        assert!(at.join(&run).join(file).is_file(), "{file}");
    }
    assert_eq!(told(&with_path(at, &["runs"], &run, &["--json"]))[0][0]["path"], shown);
    let memory = ["memory", "gpt", "--data", "text.txt", "--context", "8", "--batch-size", "2", "--json", "--out"];
    let page = told(&with_path(at, &memory, &latin1(".memory"), &[]))[0]["page"].clone();
    assert!(page.as_str().unwrap().starts_with("caf\u{fffd}.memory/"), "{page}");
    let small = with_path(at, &["compress", "quantize"], &run, &["--out", "small", "--json"]);
    assert_eq!(told(&small)[0]["run"], "small");
}

#[test]
fn pictures_and_images_may_have_names_that_are_not_utf8() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    segmentation(at, &[]);
    let images = fixture("segmentation/test/images");
    let image = fs::read_dir(images).unwrap().next().unwrap().unwrap().path();
    fs::copy(image, at.join(latin1(".tif"))).unwrap();

    let predicted = with_path(at, &["predict", "run", "--json", "--out", "out"], &latin1(".tif"), &[]);
    let line = &told(&predicted)[0];
    assert_eq!((&line["file"], &line["picture"]), (&"caf\u{fffd}.tif".into(), &"out/caf\u{fffd}.png".into()));
    assert!(at.join("out").join(latin1(".png")).is_file());
    let gone = with_path(at, &["predict", "run", "--json"], &latin1(".gone.tif"), &[]);
    assert_eq!(gone.status.code(), Some(1), "{}", stderr(&gone));
    let line: Value = serde_json::from_slice(&gone.stdout).unwrap();
    assert_eq!(line["file"], "caf\u{fffd}.gone.tif");
    let eval = ["eval", "segment", "--checkpoint", "run", "--json", "--predict", "classes", "--image"];
    assert_eq!(told(&with_path(at, &eval, &latin1(".tif"), &[]))[0]["predictions"][0], "classes/caf\u{fffd}.tif");
}

#[test]
fn a_name_is_one_line_and_controls_no_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    photos(at);
    let bad = at.join("photos/train/red/bad\n\u{1b}]0;title\u{7}\u{9b}2J.png");
    fs::write(&bad, "no image").unwrap();
    let run = ["train", "classify", "--data", "photos", "--out", "run", "--image-size", "32", "--batch-size", "4"];
    let trained = done(at, &[&run[..], &["--width", "8", "--epochs", "1", "--bad-samples", "skip:1"]].concat());
    assert_plain(&trained.stderr);
    assert!(stderr(&trained).contains("red/bad\\n\\u{1b}]0;title\\u{7}\\u{9b}2J.png"), "{}", stderr(&trained));
    let loaded = done(at, &["load", "photos", "--bad-samples", "skip:1", "--json"]);
    assert_plain(&loaded.stderr);
    let failed = output(at, &["load", "photos"]);
    assert_eq!((failed.status.code(), stderr(&failed).lines().count()), (Some(1), 1), "{}", stderr(&failed));
    assert_plain(&failed.stderr);

    // Each image has one line, whatever its name, and whatever a run calls its classes.
    fs::create_dir(at.join("odd")).unwrap();
    let name = "a\n\u{1b}]0;title\u{7}\u{9b}2J.png";
    fs::copy(at.join("photos/val/red/1.png"), at.join("odd").join(name)).unwrap();
    fs::copy(&bad, at.join("odd/b\r\u{1b}[2K.png")).unwrap();
    fs::write(at.join("run/classes.txt"), "blue\u{1b}[1m\nred\u{7f}\n").unwrap();
    let predicted = output(at, &["predict", "run", "odd"]);
    let lines: Vec<&str> = std::str::from_utf8(&predicted.stdout).unwrap().lines().collect();
    assert!(lines.len() == 1 && lines[0].starts_with("odd/a\\n\\u{1b}]0;title\\u{7}\\u{9b}2J.png: "), "{lines:?}");
    assert!(lines[0].contains("blue\\u{1b}[1m"), "{lines:?}");
    assert_plain(&predicted.stdout);
    assert_plain(&predicted.stderr);
    assert!(stderr(&predicted).contains("odd/b\\r\\u{1b}[2K.png"), "{}", stderr(&predicted));
    // JSON has the exact name.
    let predicted = output(at, &["predict", "run", "odd", "--json"]);
    assert_plain(&predicted.stdout);
    let first = std::str::from_utf8(&predicted.stdout).unwrap().lines().next().unwrap();
    assert_eq!(serde_json::from_str::<Value>(first).unwrap()["file"], format!("odd/{name}"));

    // A table of runs, and a run that is none.
    fs::rename(at.join("run"), at.join("run\n\u{1b}[1m")).unwrap();
    fs::create_dir(at.join("none\n\u{1b}[1m")).unwrap();
    let runs = output(at, &["runs", "."]);
    assert_plain(&runs.stdout);
    assert_plain(&runs.stderr);
    let table = String::from_utf8_lossy(&runs.stdout).into_owned();
    assert!(table.lines().count() == 2 && table.contains("run\\n\\u{1b}[1m"), "{table}");
    let quoted = done(at, &["plan", "classify", "--data", "a\n\u{1b}b", "--memory", "1GiB"]);
    assert_plain(&quoted.stdout);
    assert!(String::from_utf8_lossy(&quoted.stdout).contains("$'a\\u000a\\u001bb'"));
}

#[test]
#[cfg(target_os = "linux")]
fn a_system_without_threads_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    photos(at);
    text(at, 4000);
    let replicas = [&["train", "gpt", "--data", "text.txt", "--replicas", "2"][..], &SMALL].concat();
    for (arguments, message) in [
        (&["load", "photos"][..], "error: cannot start a thread that loads data: "),
        (&replicas, "error: cannot start a thread for a replica: "),
    ] {
        // No system has room for a stack of this size.
        let failed = kiln(at, arguments).env("RUST_MIN_STACK", "1152921504606846976").output().unwrap();
        assert_eq!(failed.status.code(), Some(1), "{}", stderr(&failed));
        assert!(stderr(&failed).contains(message), "{}", stderr(&failed));
    }
}
