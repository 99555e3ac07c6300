//! Options that belong together, and those that a resumed run refuses.

use std::path::PathBuf;

use crate::usage::Usage;
use anyhow::{Result, bail};

use super::directory::CONFIG;
use crate::cli::RunArgs;

/// The file that a run's settings come from besides the command line: its own when it is resumed.
pub(super) fn settings_file(arguments: &RunArgs) -> Result<Option<PathBuf>> {
    let Some(resume) = &arguments.resume else { return Ok(arguments.step.config.clone()) };
    if arguments.step.config.is_some() || arguments.out.is_some() {
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
    let step = &arguments.step;
    let given = [
        ("--data", step.data.is_some()),
        ("--batch-size", step.batch_size.is_some()),
        ("--micro-batch", step.micro_batch.is_some()),
        ("--precision", step.precision.is_some()),
        ("--checkpointing", step.checkpointing.is_some()),
        ("--memory", step.memory.is_some()),
        ("--epochs", arguments.epochs.is_some()),
        ("--max-steps", arguments.max_steps.is_some()),
        ("--seed", step.seed.is_some()),
        ("--learning-rate", arguments.learning_rate.is_some()),
        ("--base-batch", arguments.base_batch.is_some()),
        ("--batch-rule", arguments.batch_rule.is_some()),
        ("--clip-norm", step.clip_norm.is_some()),
        ("--evaluate-every", arguments.evaluate_every.is_some()),
        ("--stock-layers", step.stock_layers),
    ];
    match given.iter().chain(&step.optimizer.given()).chain(others).find(|(_, given)| *given) {
        Some((option, _)) => bail!(Usage(format!(
            "{option} cannot change in a run that goes on, expected only --device, --workers, --save-every, --keep, --inject-oom and --json beside --resume"
        ))),
        None => Ok(()),
    }
}
