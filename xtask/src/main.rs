//! `cargo xtask`: trains and evaluates the reference models, and what maintainers run.

mod check;
mod cli;
mod compress;
mod dist;
mod eval;
mod fetch;
mod fixtures;
mod fuzz;
mod load;
mod log;
mod memory;
mod models;
mod plan;
mod remedies;
mod train;

use std::process::ExitCode;

use clap::Parser;
use cli::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    log::init();
    let outcome = match cli.command {
        Command::Train(command) => train::run(command),
        Command::Eval(command) => eval::run(command),
        Command::Compress(command) => compress::run(command),
        Command::Memory(command) => memory::run(command),
        Command::Plan(command) => plan::run(command).map(|()| ExitCode::SUCCESS),
        Command::Models(command) => models::run(&command).map(|()| ExitCode::SUCCESS),
        Command::Fetch(command) => fetch::run(&command).map(|()| ExitCode::SUCCESS),
        Command::Fixtures(command) => fixtures::run(&command).map(|()| ExitCode::SUCCESS),
        Command::Check(arguments) => check::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Load(command) => load::run(&command).map(|()| ExitCode::SUCCESS),
        Command::Bench(command) => benches::bench::run(&command),
        Command::Fuzz(command) => fuzz::run(&command).map(|()| ExitCode::SUCCESS),
        Command::Gpu(command) => benches::gpu::run(&command),
        Command::Dist(command) => dist::run(&command).map(|()| ExitCode::SUCCESS),
    };
    outcome.unwrap_or_else(|error| {
        use std::io::Write;
        let text = format!("{error:#}{}", advice(&error)).replace('\n', " ");
        // Nothing is left to do when stderr is closed.
        let _ = writeln!(std::io::stderr(), "error: {text}");
        benches::usage::exit_code(&error)
    })
}

/// The options that help against an error of a library, which does not know them.
fn advice(error: &anyhow::Error) -> &'static str {
    use kiln_data::Error::TooLarge;
    let too_large = error.chain().any(|cause| {
        matches!(cause.downcast_ref(), Some(TooLarge { .. }))
            || matches!(cause.downcast_ref(), Some(kiln_training::Error::Data(TooLarge { .. })))
    });
    match too_large {
        true => "; a larger --memory or --loader-memory allows it, and --bad-samples skip:N leaves it out",
        false => "",
    }
}
