//! `sample`: the text of a seed, of every kind of run, and calls that are refused.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use super::support::{done, fixture, json_lines, kiln, refused, stderr, text};

/// A small run in `folder`/`name` on some of the book.
fn trained(folder: &Path, name: &str, options: &[&str]) {
    let data = text(folder, 40_000);
    let run = ["train", "gpt", "--data", data.to_str().unwrap(), "--out", name, "--context", "16", "--max-steps", "12"];
    done(folder, &[&run[..], options].concat());
}

/// The lines of JSON of `sample`.
#[track_caller]
fn sampled(folder: &Path, arguments: &[&str]) -> Vec<Value> {
    json_lines(folder, &[&["sample"], arguments].concat())
}

#[test]
fn a_seed_makes_the_same_text_with_and_without_a_cache_and_within_the_context() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    trained(at, "run", &[]);
    let options = ["run", "--prompt", "Call", "--tokens", "12", "--seed", "7", "--samples", "2"];
    let first = sampled(at, &options);
    assert_eq!(first.len(), 2);
    for (number, line) in first.iter().enumerate() {
        assert_eq!((line["sample"].as_u64(), line["tokens"].as_u64()), (Some(number as u64), Some(12)), "{line}");
        assert_eq!((line["prompt"].as_str(), line["seed"].as_u64()), (Some("Call"), Some(7)));
    }
    assert_ne!(first[0]["text"], first[1]["text"], "each text has random numbers of its own");
    let texts = |lines: Vec<Value>| lines.into_iter().map(|line| line["text"].clone()).collect::<Vec<_>>();
    let first = texts(first);
    assert_eq!(texts(sampled(at, &options)), first);
    // Within the context both read the same tokens.
    assert_eq!(texts(sampled(at, &[&options[..], &["--no-cache"]].concat())), first);
    assert_ne!(texts(sampled(at, &[&options[..5], &["--seed", "8", "--samples", "2"]].concat())), first);
    // A checkpoint, and the file of weights, are the same model; greedy text does not depend on the seed.
    let greedy = |run: &str, seed| {
        texts(sampled(at, &[run, "--temperature", "0", "--tokens", "40", "--seed", seed, "--prompt", "Call"]))
    };
    let expected = greedy("run", "1");
    assert_eq!(greedy("run/model.safetensors", "2"), expected);
    let of_best = ["run", "--best", "--temperature", "0", "--tokens", "40", "--prompt", "Call"];
    assert_eq!(texts(sampled(at, &of_best)), greedy("run/checkpoints/best", "2"));
    fs::rename(at.join("run/checkpoints"), at.join("aside")).unwrap();
    assert_eq!(greedy("run", "3"), expected, "a run that was copied without its checkpoints");
}

#[test]
fn text_comes_with_its_prompt_from_wherever_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let bpe = fixture("bpe");
    trained(at, "run", &["--tokenizer", bpe.to_str().unwrap()]);
    fs::write(at.join("prompt.txt"), "Ahab café").unwrap();
    let options = ["--tokens", "30", "--seed", "3", "--top-k", "50", "--top-p", "0.9"];
    let of_file = done(at, &[&["sample", "run", "--prompt-file", "prompt.txt"], &options[..]].concat());
    assert!(stderr(&of_file).contains("30 tokens in") && stderr(&of_file).contains("tokens/s; --seed 3"));
    let written = String::from_utf8(of_file.stdout).unwrap();
    assert!(written.starts_with("Ahab café") && written.ends_with('\n'), "{written}");
    assert!(written.chars().count() > 30, "{written}");
    for stdin in ["--prompt", "--prompt-file"] {
        let mut child = kiln(at, &[&["sample", "run", stdin, "-"], &options[..]].concat())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all("Ahab café".as_bytes()).unwrap();
        assert_eq!(String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap(), written);
    }
}

#[test]
fn adapters_16_bits_and_integers_are_sampled_from() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    trained(at, "plain", &[]);
    trained(at, "adapted", &["--init", "plain", "--lora", "4"]);
    trained(at, "half", &["--precision", "bf16"]);
    done(at, &["compress", "quantize", "plain", "--bits", "4", "--block", "32", "--out", "integers"]);
    done(at, &["compress", "quantize", "plain", "--inputs", "--out", "inputs"]);
    for run in ["adapted", "half", "integers", "inputs"] {
        let cached = ["--prompt", "the ", "--temperature", "0", "--tokens", "10"];
        let text = sampled(at, &[&[run], &cached[..]].concat())[0]["text"].clone();
        assert!(!text.as_str().unwrap().is_empty());
        if run != "half" && run != "inputs" {
            // In few bits, differences in rounding may lead to another token.
            let uncached = sampled(at, &[&[run, "--no-cache"], &cached[..]].concat());
            assert_eq!(uncached[0]["text"], text, "{run}");
        }
    }
}

#[test]
fn a_run_with_a_store_is_sampled_from_block_by_block() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    for precision in ["f32", "bf16"] {
        let run = format!("run-{precision}");
        trained(at, &run, &["--checkpointing", "stream", "--precision", precision]);
        let report = fs::read_to_string(at.join(&run).join("report.html")).unwrap();
        assert!(report.contains("tokens of the model"), "the report has a text of the model");
        let options = ["sample", &run, "--prompt", "Call", "--tokens", "30", "--seed", "7"];
        let streamed = done(at, &options);
        assert!(stderr(&streamed).contains("/store for each token"), "{}", stderr(&streamed));
        fs::remove_dir_all(at.join(&run).join("store")).unwrap();
        let whole = done(at, &options);
        assert!(!stderr(&whole).contains("for each token"), "{}", stderr(&whole));
        assert_eq!(String::from_utf8_lossy(&streamed.stdout), String::from_utf8_lossy(&whole.stdout), "{precision}");
    }
}

#[test]
fn a_consumer_that_has_enough_ends_the_text() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    trained(at, "run", &[]);
    let mut child = kiln(at, &["sample", "run", "--tokens", "1000000", "--seed", "1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 8];
    std::io::Read::read_exact(&mut child.stdout.take().unwrap(), &mut first).unwrap(); // and closes it
    let ended = child.wait_with_output().unwrap();
    assert!(ended.status.success() && ended.stderr.is_empty(), "{}", stderr(&ended));
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_a_text_with_what_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    trained(at, "run", &[]);
    let mut child = kiln(at, &["sample", "run", "--tokens", "1000000", "--seed", "1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut first = [0; 8];
    std::io::Read::read_exact(&mut stdout, &mut first).unwrap();
    let killed = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let mut rest = vec![];
    std::io::Read::read_to_end(&mut stdout, &mut rest).unwrap();
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130), "{}", stderr(&ended));
    assert!(rest.ends_with(b"\n") && stderr(&ended).contains("tokens/s"), "{}", stderr(&ended));
}

#[test]
fn calls_that_cannot_be_sampled_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    trained(at, "run", &[]);
    done(at, &["train", "classify", "--out", "images", "--max-steps", "1", "--width", "4"]);
    fs::create_dir(at.join("empty")).unwrap();
    fs::write(at.join("latin1.txt"), [0x63, 0xe9]).unwrap();
    fs::write(at.join("nothing.txt"), "").unwrap();
    for (arguments, code, parts) in [
        (&["images"][..], 2, &["an image classifier", "train gpt", "predict images"][..]),
        (&["absent"], 1, &["absent", "no such file"]),
        (&["empty"], 1, &["empty", "config.toml"]),
        (&["run", "--temperature", "-1"], 2, &["temperature is -1", "at least 0"]),
        (&["run", "--temperature", "nan"], 2, &["temperature is NaN"]),
        (&["run", "--top-k", "0"], 2, &["top-k is 0", "at least 1"]),
        (&["run", "--top-p", "1.5"], 2, &["top-p is 1.5", "at most 1"]),
        (&["run", "--tokens", "0"], 2, &["--tokens is 0"]),
        (&["run", "--samples", "0"], 2, &["--samples is 0"]),
        (&["run", "--prompt", ""], 2, &["--prompt is empty"]),
        (&["run", "--prompt-file", "nothing.txt"], 2, &["'nothing.txt' is empty"]),
        (&["run", "--prompt-file", "latin1.txt"], 2, &["latin1.txt", "not UTF-8 at byte 1"]),
        (&["run", "--prompt-file", "absent.txt"], 1, &["absent.txt"]),
        (&["run", "--device", "tpu"], 2, &["unknown device 'tpu'"]),
    ] {
        refused(at, &[&["sample"], arguments].concat(), code, parts);
    }
}
