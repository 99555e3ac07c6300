//! Calling the program.

use std::path::Path;
use std::process::{Command, Output};

/// The program, run in `folder`.
pub(crate) fn kiln(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.args(arguments).current_dir(folder).env_remove("KILN_LOG");
    command
}

pub(crate) fn output(folder: &Path, arguments: &[&str]) -> Output {
    kiln(folder, arguments).output().unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
