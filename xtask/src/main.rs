//! `cargo xtask`: the commands of `kiln`, and commands for maintainers.

mod cargo;
mod check;
mod cli;
mod dist;
mod figures;
mod fixtures;
mod fuzz;
mod house;
mod launches;
mod package;
mod tokens;

use std::process::ExitCode;

use clap::Parser;
use cli::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    kiln_cli::init_log(cli.verbosity);
    kiln_cli::finish(match cli.command {
        Command::Kiln(command) => kiln_cli::run(command),
        Command::Fixtures(command) => fixtures::run(&command).map(|()| ExitCode::SUCCESS),
        Command::Check(arguments) => check::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Bench(command) => benches::bench::run(&command),
        Command::Predictions(arguments) => benches::predictions::run(&arguments),
        Command::SameBits(arguments) => benches::same_bits::run(&arguments),
        Command::Failures(arguments) => benches::failures::run(&arguments),
        Command::Figures(command) => figures::run(&command).map(|()| ExitCode::SUCCESS),
        Command::Fuzz(command) => fuzz::run(&command).map(|()| ExitCode::SUCCESS),
        Command::Gpu(command) => benches::gpu::run(&command),
        Command::House => house::run().map(|()| ExitCode::SUCCESS),
        Command::Launches(arguments) => launches::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Dist(command) => dist::run(&command).map(|()| ExitCode::SUCCESS),
        Command::Package => package::run().map(|()| ExitCode::SUCCESS),
    })
}
