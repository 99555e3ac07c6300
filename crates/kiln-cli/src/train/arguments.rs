//! Options that belong together, and options that a resumed run refuses.

use std::path::{Path, PathBuf};

use crate::pipelines::{Kind, settings_beside};
use crate::usage::Usage;
use anyhow::{Result, bail};
use kiln_data::printable;
use toml::Table;

use super::directory::CONFIG;
use super::overlay::read;
use crate::cli::RunArgs;

/// The settings file of a run: its own if it is resumed, that of the other run if it starts from one, else `--config`.
fn settings_file(arguments: &RunArgs) -> Result<Option<PathBuf>> {
    if let Some(from) = &arguments.begin.from {
        return match settings_beside(from) {
            Some(file) => Ok(Some(file)),
            None => bail!(
                "cannot start from '{}': it belongs to no run directory, expected one with a {CONFIG}, or one of its checkpoints",
                printable(&from)
            ),
        };
    }
    let Some(resume) = &arguments.resume else { return Ok(arguments.step.config.clone()) };
    if arguments.step.config.is_some() || arguments.out.is_some() {
        bail!(Usage("--resume goes on under the run's own settings, expected neither --config nor --out".into()));
    }
    let file = resume.join(CONFIG);
    if !file.is_file() {
        bail!("cannot resume '{}': it is no run directory, expected a {} in it", printable(&resume), CONFIG);
    }
    Ok(Some(file))
}

/// The settings in that file, of a run of `kind`. A run that starts from another one takes over its settings, but neither its initial
/// weights nor the plan that its memory budget led to.
pub(super) fn settings_table(arguments: &RunArgs, kind: Kind) -> Result<Option<(PathBuf, Table)>> {
    let Some(file) = settings_file(arguments)? else { return Ok(None) };
    let mut table = read(&file)?;
    kind.expect(&table, &file)?;
    give_way(&mut table, arguments);
    Ok(Some((file, table)))
}

/// Removes settings of a file that an option with another name replaces.
fn give_way(table: &mut Table, arguments: &RunArgs) {
    let (begin, resumes) = (&arguments.begin, arguments.resume.is_some());
    if (begin.init.is_some() || begin.from.is_some())
        && let Some(toml::Value::Table(compression)) = table.get_mut("compression")
    {
        compression.remove("weights");
    }
    let Some(toml::Value::Table(run)) = table.get_mut("run") else { return };
    if begin.init.is_some() {
        run.remove("from");
    }
    // The options ask for whole epochs. The length of a continued run is decided later.
    if arguments.epochs.is_some() && arguments.max_steps.is_none() && !resumes {
        run.remove("max_steps");
    }
    if begin.from.is_some() {
        run.remove("init");
        if run.contains_key("memory") {
            run.remove("micro_batch");
            run.remove("checkpointing");
            run.remove("optimizer_offload");
        }
    }
}

/// The file and the settings, in the form that [`resolve`](super::overlay::resolve) takes.
pub(super) fn borrowed(file: Option<&(PathBuf, Table)>) -> Option<(&Path, Table)> {
    file.map(|(path, table)| (path.as_path(), table.clone()))
}

/// Refuses changes of settings with which a run cannot continue: its model, its data and their order, its precision. The device may
/// change; another device rounds differently.
pub(super) fn refuse_changes(arguments: &RunArgs, others: &[(&str, bool)]) -> Result<()> {
    let Some(run) = &arguments.resume else { return Ok(()) };
    let given = [
        ("--data", arguments.step.data.is_some()),
        ("--batch-size", arguments.step.batch_size.is_some()),
        ("--precision", arguments.step.precision.is_some()),
        ("--allow-bf16", arguments.step.allow_bf16),
        ("--seed", arguments.step.seed.is_some()),
        ("--stock-layers", arguments.step.stock_layers),
        ("--base-batch", arguments.base_batch.is_some()),
        ("--init", arguments.begin.init.is_some()),
        ("--freeze", !arguments.begin.freeze.is_empty()),
    ];
    match given.iter().chain(&arguments.step.optimizer.given()).chain(others).find(|(_, given)| *given) {
        Some((option, _)) => bail!(Usage(format!(
            "{option} cannot change in a run that goes on, expected a new run: --from {run} begins one with the weights and the optimizer's \
             state of this one, --init {run} with the weights that fit",
            run = printable(&run)
        ))),
        None => Ok(()),
    }
}
