//! What a run shows while it trains: bars on a terminal, plain lines in a file, and the classes of its data.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::support::{output, stderr, text};

/// The terminal's text without its control sequences, by lines as they were drawn.
fn drawn(raw: &str) -> Vec<String> {
    let mut plain = String::new();
    let mut chars = raw.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            '\u{1b}' if chars.next_if_eq(&'[').is_some() => {
                for next in chars.by_ref() {
                    if next.is_ascii_alphabetic() {
                        break;
                    }
                }
                plain.push('\n');
            }
            '\r' => plain.push('\n'),
            other => plain.push(other),
        }
    }
    // Bars are padded to the width of the terminal, where the next one begins.
    let columns = plain.lines().flat_map(|line| {
        let chars: Vec<char> = line.chars().collect();
        chars.chunks(80).map(|row| row.iter().collect::<String>().trim_end().to_owned()).collect::<Vec<_>>()
    });
    columns.filter(|line| !line.is_empty()).collect()
}

#[test]
fn a_terminal_of_80_columns_has_a_bar_of_steps_and_one_of_evaluations() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let book = text(at, 200_000);
    // Enough steps for the bars to be drawn, which happens some times a second.
    let run = format!(
        "stty cols 80; exec '{}' train gpt --data '{}' --max-steps 40 --context 32 --memory step:200MiB --out run",
        env!("CARGO_BIN_EXE_kiln"),
        book.display()
    );
    let shown =
        Command::new("script").args(["-qec", &run, "/dev/null"]).current_dir(at).stdin(Stdio::null()).output().unwrap();
    assert!(shown.status.success());
    let lines = drawn(&String::from_utf8_lossy(&shown.stdout));
    let bars: Vec<&String> = lines.iter().filter(|line| line.contains("ETA")).collect();
    assert!(bars.iter().all(|line| line.contains('/') && line.chars().count() < 80), "{bars:#?}");
    let steps =
        bars.iter().find(|line| line.contains("/40 ") && line.contains("peak")).unwrap_or_else(|| panic!("{lines:#?}"));
    assert!(steps.contains("/200 MiB") && steps.contains("loss") && steps.contains("/s"), "{steps}");
    assert!(lines.iter().any(|line| line.starts_with("evaluating") && line.contains("batches")), "{lines:#?}");
    assert!(!lines.iter().any(|line| line.contains("in flight")), "{lines:#?}");
}

#[test]
fn a_redirected_run_has_plain_lines() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let book = text(at, 8000);
    let run = ["train", "gpt", "--data", book.to_str().unwrap(), "--context", "16", "--max-steps", "2", "--out", "run"];
    let text = stderr(&output(at, &run));
    assert!(!text.contains('\r') && !text.contains('\u{1b}') && !text.contains("ETA"), "{text}");
    assert!(text.contains("step 2  epochs 0.03  loss ") && text.contains("bits_per_byte"), "{text}");
}

/// `count` images of one class, brighter than `least`.
fn images(folder: &Path, class: &str, count: usize, least: u8) {
    let folder = folder.join(class);
    fs::create_dir_all(&folder).unwrap();
    for index in 0..count {
        let shade = least + (index % 40) as u8;
        image::RgbImage::from_pixel(8, 8, image::Rgb([shade, shade, shade]))
            .save(folder.join(format!("{index}.png")))
            .unwrap();
    }
}

#[test]
fn two_classes_are_counted_and_held_against_the_majority() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    for (part, cats, dogs) in [("train", 30, 10), ("val", 6, 2)] {
        images(&at.join("pets").join(part), "cat", cats, 0);
        images(&at.join("pets").join(part), "dog", dogs, 200);
    }
    let size = ["--image-size", "8", "--batch-size", "4", "--width", "4", "--workers", "1"];
    let run = ["train", "classify", "--data", "pets", "--out", "run", "--epochs", "1", "--json"];
    let run = output(at, &[&run[..], &size].concat());
    let text = stderr(&run);
    assert!(run.status.success(), "{text}");
    assert!(text.contains("images to train on: cat 30, dog 10; held out: cat 6, dog 2"), "{text}");
    assert!(text.contains("baseline: always \"cat\", the most frequent class: 0.75"), "{text}");
    assert!(text.contains("WARN classes with fewer than 20 images to train on: dog 10"), "{text}");
    let results: Value = serde_json::from_slice(&run.stdout).unwrap();
    assert!(results.get("val_top5").is_none(), "{results}");
    assert_eq!((&results["majority_class"], results["majority_accuracy"].as_f64()), (&"cat".into(), Some(0.75)));
    // The evaluation of the checkpoint gives equal figures. The balanced accuracy is the mean of two recalls, in sixths and halves.
    let balanced = results["val_balanced_accuracy"].as_f64().unwrap();
    let accuracy = results["val_accuracy"].as_f64().unwrap();
    let recalls = |cats: f64, dogs: f64| ((cats + dogs) / 8.0, (cats / 6.0 + dogs / 2.0) / 2.0);
    let possible = (0..=6).flat_map(|cats| (0..=2).map(move |dogs| recalls(f64::from(cats), f64::from(dogs))));
    let close =
        |(of_all, of_classes): (f64, f64)| (of_all - accuracy).abs() < 1e-6 && (of_classes - balanced).abs() < 1e-5;
    assert!(possible.into_iter().any(close), "{accuracy} {balanced}");
    let evaluated = output(at, &["eval", "classify", "--checkpoint", "run", "--json"]);
    let evaluated: Value = serde_json::from_slice(&evaluated.stdout).unwrap();
    assert_eq!(evaluated["test_balanced_accuracy"], results["val_balanced_accuracy"]);
}

#[test]
fn ten_balanced_classes_keep_their_figures() {
    let folder = tempfile::tempdir().unwrap();
    let run = output(folder.path(), &["train", "classify", "--max-steps", "1", "--out", "run", "--json"]);
    let text = stderr(&run);
    assert!(text.contains("10 classes of 400 images each") && !text.contains("WARN"), "{text}");
    let results: Value = serde_json::from_slice(&run.stdout).unwrap();
    let mut figures: Vec<&String> = results.as_object().unwrap().keys().filter(|key| key.starts_with("val_")).collect();
    figures.sort();
    assert_eq!(figures, ["val_accuracy", "val_loss", "val_top5"]);
}
