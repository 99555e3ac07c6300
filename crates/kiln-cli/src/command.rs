//! Runs a command and turns its outcome into messages and an exit status.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use kiln_data::printable;

use crate::cli::Command;
use crate::mistake::is_mistake;
use crate::{advice, compress, doctor, eval, export, fetch, load, memory, models, plan, predict, runs, sample, train};

/// Runs `command`.
///
/// # Errors
/// The error of the command; [`finish`] reports it to the user.
pub fn run(command: Command) -> Result<ExitCode> {
    let takes_steps = matches!(command, Command::Train(_) | Command::Memory(_));
    let outcome = match command {
        Command::Train(command) => train::run(command),
        Command::Eval(command) => eval::run(command),
        Command::Sample(command) => sample::run(&command),
        Command::Predict(command) => predict::run(&command),
        Command::Export(command) => export::run(&command).map(|()| ExitCode::SUCCESS),
        Command::Compress(command) => compress::run(command),
        Command::Memory(command) => memory::run(command),
        Command::Plan(command) => plan::run(command).map(|()| ExitCode::SUCCESS),
        Command::Doctor(command) => doctor::run(&command).map(|()| ExitCode::SUCCESS),
        Command::Runs(command) => runs::list(&command).map(|()| ExitCode::SUCCESS),
        Command::Compare(command) => runs::compare(&command).map(|()| ExitCode::SUCCESS),
        Command::Models(command) => models::run(&command).map(|()| ExitCode::SUCCESS),
        Command::Fetch(command) => fetch::run(&command).map(|()| ExitCode::SUCCESS),
        Command::Load(command) => load::run(&command).map(|()| ExitCode::SUCCESS),
        Command::Completions(command) => completions(command.shell).map(|()| ExitCode::SUCCESS),
    };
    match takes_steps {
        true => outcome.map_err(advice::advised),
        false => outcome,
    }
}

/// Prints a script with which a shell completes the commands and options of the program.
fn completions(shell: clap_complete::Shell) -> Result<()> {
    let mut program = Command::augment_subcommands(clap::Command::new("kiln").version(env!("CARGO_PKG_VERSION")));
    let mut script = vec![];
    clap_complete::generate(shell, &mut program, "kiln", &mut script);
    std::io::stdout().lock().write_all(&script)?;
    Ok(())
}

/// The exit status of a command. Writes the error of one that failed as the last line of stderr.
pub fn finish(outcome: Result<ExitCode>) -> ExitCode {
    outcome.unwrap_or_else(|error| {
        if error.chain().any(is_closed_pipe) {
            return ExitCode::SUCCESS; // whoever read the output has read enough
        }
        let text = printable(&format!("{error:#}").replace('\n', " "));
        // Nothing is left to do when stderr is closed.
        let _ = writeln!(std::io::stderr(), "error: {text}");
        exit_code(&error)
    })
}

/// Whether stdout was closed, as `head` does.
fn is_closed_pipe(cause: &(dyn std::error::Error + 'static)) -> bool {
    let kind = cause.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    kind == Some(std::io::ErrorKind::BrokenPipe)
}

/// 2 for an error in the call or the configuration, 1 for any other failure.
fn exit_code(error: &anyhow::Error) -> ExitCode {
    ExitCode::from(if error.chain().any(is_mistake) { 2 } else { 1 })
}
