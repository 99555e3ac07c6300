//! `kiln`: the program.

use std::process::ExitCode;

use clap::Parser;

/// Train burn models inside a memory budget.
#[derive(Parser)]
#[command(name = "kiln", version, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    verbosity: kiln_cli::Verbosity,
    #[command(subcommand)]
    command: Option<kiln_cli::Command>,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    kiln_cli::init_log(cli.verbosity);
    match cli.command {
        Some(command) => kiln_cli::finish(kiln_cli::run(command)),
        None => kiln_cli::finish(kiln_cli::overview()),
    }
}
