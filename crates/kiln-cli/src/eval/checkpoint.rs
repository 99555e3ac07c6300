//! The settings that a checkpoint belongs to.

use crate::pipelines::{Kind, RunSettings, settings_beside};
use crate::usage::Usage;
use anyhow::{Context, Result, bail};
use kiln_data::printable;
use serde::de::DeserializeOwned;

use crate::cli::EvalArgs;
use crate::train::overlay::read;
use crate::trained::best;

/// The settings of `kind` that belong to a checkpoint, from `--config`, or from the file of the run directory around it.
pub(super) fn settings<S: DeserializeOwned>(arguments: &EvalArgs, kind: Kind) -> Result<S> {
    let checkpoint = &arguments.checkpoint;
    if !checkpoint.exists() {
        bail!("cannot load '{}': no such file or directory", printable(&checkpoint));
    }
    let file = match &arguments.config {
        Some(file) => file.clone(),
        None => settings_beside(checkpoint).with_context(|| {
            format!("no config.toml beside or above '{}', expected one, or --config", printable(&checkpoint))
        })?,
    };
    let table = read(&file)?;
    kind.expect(&table, &file)?;
    table.try_into().map_err(|e: toml::de::Error| {
        Usage(format!("config '{}' is damaged: {}", printable(&file), e.message())).into()
    })
}

/// Replaces the path by the best checkpoint of the run if `--best` is given.
pub(super) fn chosen(arguments: &mut EvalArgs) -> Result<()> {
    if arguments.best {
        arguments.checkpoint = best(&arguments.checkpoint)?;
    }
    Ok(())
}

pub(super) fn apply(arguments: &EvalArgs, run: &mut RunSettings) {
    run.data = arguments.data.clone().or(run.data.take());
    run.device = arguments.device.clone().unwrap_or_else(|| "flex".into());
    run.memory = None; // it is that of steps
    if let Some(samples) = arguments.batch_size {
        (run.batch_size, run.micro_batch) = (samples as usize, None);
    }
}
