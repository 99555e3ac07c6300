//! `cargo xtask train`: the two reference pipelines.

pub(crate) mod budget;
pub(crate) mod checkpointing;
pub(crate) mod directory;
pub(crate) mod drive;
mod exhausted;
pub(crate) mod gpt;
mod observe;
pub(crate) mod recorded;
mod report;
pub(crate) mod resnet;
pub(crate) mod settings;
pub(crate) mod watch;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::cli::{RunArgs, Train};
use crate::usage::Usage;

pub(crate) use directory::RunDirectory;

pub(crate) fn run(command: Train) -> Result<ExitCode> {
    match command {
        Train::Resnet(arguments) => {
            resnet::prepared(arguments, |run, device, run_args, init| run.drive(device, run_args, init))
        }
        Train::Gpt(arguments) => {
            gpt::prepared(arguments, |run, device, run_args, init| run.drive(device, run_args, init))
        }
    }
}

/// The file that a run's settings come from besides the command line: its own when it is resumed.
fn settings_file(arguments: &RunArgs) -> Result<Option<PathBuf>> {
    let Some(resume) = &arguments.resume else { return Ok(arguments.config.clone()) };
    if arguments.config.is_some() || arguments.out.is_some() {
        bail!(Usage("--resume goes on under the run's own settings, expected neither --config nor --out".into()));
    }
    let file = resume.join(directory::CONFIG);
    if !file.is_file() {
        bail!("cannot resume '{}': it is no run directory, expected a {} in it", resume.display(), directory::CONFIG);
    }
    Ok(Some(file))
}

/// A run that goes on keeps what its numbers depend on. The device may change, as long as one accepts that another
/// device rounds otherwise.
fn refuse_changes(arguments: &RunArgs, others: &[(&str, bool)]) -> Result<()> {
    if arguments.resume.is_none() {
        return Ok(());
    }
    let given = [
        ("--data", arguments.data.is_some()),
        ("--batch-size", arguments.batch_size.is_some()),
        ("--micro-batch", arguments.micro_batch.is_some()),
        ("--precision", arguments.precision.is_some()),
        ("--checkpointing", arguments.checkpointing.is_some()),
        ("--memory", arguments.memory.is_some()),
        ("--epochs", arguments.epochs.is_some()),
        ("--max-steps", arguments.max_steps.is_some()),
        ("--seed", arguments.seed.is_some()),
        ("--learning-rate", arguments.learning_rate.is_some()),
        ("--clip-norm", arguments.clip_norm.is_some()),
        ("--evaluate-every", arguments.evaluate_every.is_some()),
    ];
    match given.iter().chain(others).find(|(_, given)| *given) {
        Some((option, _)) => bail!(Usage(format!(
            "{option} cannot change in a run that goes on, expected only --device, --workers, --save-every, --keep, --inject-oom and --json beside --resume"
        ))),
        None => Ok(()),
    }
}
