//! Calling the program, and small data for it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

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

pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

/// The first `bytes` of the book.
pub(crate) fn text(folder: &Path, bytes: usize) -> PathBuf {
    let book = std::fs::read_to_string(fixture("moby-dick/moby-dick.txt")).unwrap();
    let path = folder.join("text.txt");
    std::fs::write(&path, &book[..book.floor_char_boundary(bytes)]).unwrap();
    path
}
