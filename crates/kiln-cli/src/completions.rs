//! `kiln completions`: scripts with which a shell completes the commands and options of the program.

use std::io::Write;

use anyhow::Result;
use clap::Subcommand;

use crate::cli::{Command, Completions};

pub(crate) fn run(arguments: &Completions) -> Result<()> {
    let mut program = Command::augment_subcommands(clap::Command::new("kiln").version(env!("CARGO_PKG_VERSION")));
    let mut script = vec![];
    clap_complete::generate(arguments.shell, &mut program, "kiln", &mut script);
    std::io::stdout().lock().write_all(&script)?;
    Ok(())
}
