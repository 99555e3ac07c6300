//! `kiln`: the program.

use std::process::ExitCode;

use clap::Parser;

/// Train burn models inside a memory budget.
#[derive(Parser)]
#[command(name = "kiln", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: kiln_cli::Command,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    kiln_cli::init_log();
    kiln_cli::finish(kiln_cli::run(cli.command))
}
