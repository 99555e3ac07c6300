//! Options that belong together, and those that a resumed run refuses.

use std::path::PathBuf;

use crate::usage::Usage;
use anyhow::{Result, bail};

use super::directory::CONFIG;
use crate::cli::RunArgs;

/// The file that a run's settings come from besides the command line: its own when it is resumed.
pub(super) fn settings_file(arguments: &RunArgs) -> Result<Option<PathBuf>> {
    let Some(resume) = &arguments.resume else { return Ok(arguments.config.clone()) };
    if arguments.config.is_some() || arguments.out.is_some() {
        bail!(Usage("--resume goes on under the run's own settings, expected neither --config nor --out".into()));
    }
    let file = resume.join(CONFIG);
    if !file.is_file() {
        bail!("cannot resume '{}': it is no run directory, expected a {} in it", resume.display(), CONFIG);
    }
    Ok(Some(file))
}

/// Refuses changes of settings that a run's numbers depend on. The device may change; another device rounds differently.
pub(super) fn refuse_changes(arguments: &RunArgs, others: &[(&str, bool)]) -> Result<()> {
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
        ("--stock-layers", arguments.stock_layers),
    ];
    match given.iter().chain(&arguments.optimizer.given()).chain(others).find(|(_, given)| *given) {
        Some((option, _)) => bail!(Usage(format!(
            "{option} cannot change in a run that goes on, expected only --device, --workers, --save-every, --keep, --inject-oom and --json beside --resume"
        ))),
        None => Ok(()),
    }
}
