//! What the program prints when it is called without a command.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;

const OVERVIEW: &str = "\
Train models inside a memory budget.

Usage: kiln COMMAND [OPTIONS]

  kiln train classify --data photos/               an image classifier
  kiln train gpt --data book.txt --memory 300MiB   a language model in 300 MiB
  kiln plan classify --memory 16GiB                what fits into a card
  kiln memory gpt                                  what the memory is used for
  kiln sample runs/gpt-001                         text of a trained model

Without --data, train takes a small data set of the project. kiln --help lists
all commands, and kiln COMMAND --help the options of one.
";

/// Prints the commands that a newcomer wants first.
///
/// # Errors
/// When stdout is closed.
pub fn overview() -> Result<ExitCode> {
    std::io::stdout().lock().write_all(OVERVIEW.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
