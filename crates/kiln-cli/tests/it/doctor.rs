//! Texts about missing memory, and runs, are explained.

use std::fs;
use std::io::Write;
use std::process::Stdio;

use super::support::{kiln, refused, stdout};

const TORCH: &str = "step 12\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.53 GiB. GPU 0 has a total capacity of 23.65 GiB \
    of which 1.12 GiB is free. Including non-PyTorch memory, this process has 22.51 GiB memory in use. Of the allocated memory 20.37 GiB is \
    allocated by PyTorch, and 412.00 MiB is reserved by PyTorch but unallocated.\n";

#[test]
fn a_log_is_read_from_a_file_and_from_stdin() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("train.log"), TORCH).unwrap();
    let text = stdout(folder.path(), &["doctor", "train.log"]);
    for part in ["PyTorch found no memory on a GPU.", "20.4 GiB", "What it means:", "--memory SIZE", "out-of-memory.md"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");

    let mut process = kiln(folder.path(), &["doctor"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    process.stdin.take().unwrap().write_all(TORCH.as_bytes()).unwrap();
    assert_eq!(String::from_utf8(process.wait_with_output().unwrap().stdout).unwrap(), text);

    fs::write(folder.path().join("other.log"), "all is well \u{1b}[1m").unwrap();
    assert!(stdout(folder.path(), &["doctor", "other.log"]).contains("Nothing in it speaks of missing memory."));
    refused(folder.path(), &["doctor", "none.log"], 1, &["none.log"]);
}

#[test]
fn a_run_says_how_it_ended() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("gpt-001");
    fs::create_dir(&run).unwrap();
    refused(folder.path(), &["doctor", "gpt-001"], 1, &["gpt-001' is no run"]);
    fs::write(run.join("config.toml"), "[run]\nseed = 1\n[model]\nlayers = 2\n").unwrap();
    let said = |status: &str| {
        fs::write(run.join("status.json"), status).unwrap();
        stdout(folder.path(), &["doctor", "gpt-001"])
    };
    let of = |command: &str| {
        said(&format!(
            r#"{{"state": "failed", "command": "{command}", "detail": "step 3: can't allocate buffer of size: 1099511627776", "results": {{"peak_bytes": 5368709120}}}}"#
        ))
    };
    let failed = of("gpt");
    for part in ["gpt-001 failed at step 0: step 3", "1.0 TiB", "measured peak", "5.0 GiB", "--resume RUN"] {
        assert!(failed.contains(part), "{part}: {failed}");
    }
    assert!(of("").contains("start the program again, with_memory(SIZE)"));
    assert!(said(r#"{"state": "running"}"#).contains("ended from outside"));
    assert!(said(r#"{"state": "finished", "results": {"failed_attempts": 2}}"#).contains("2 attempts found no memory"));
    assert!(said(r#"{"state": "finished"}"#).contains("No attempt was short of memory."));
}
