//! Options that belong together, and those that a resumed run refuses.

use std::path::{Path, PathBuf};

use crate::pipelines::{Kind, settings_beside};
use crate::usage::Usage;
use anyhow::{Result, bail};
use kiln_data::printable;
use toml::Table;

use super::directory::CONFIG;
use super::overlay::read;
use crate::cli::RunArgs;

/// The file that a run's settings come from besides the command line: its own when it is resumed, that of the run that it starts from.
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

/// The settings in that file, of a run of `kind`. A run that starts from another one takes over its settings, but neither the
/// weights that it began with nor the plan that its memory budget led to.
pub(super) fn settings_table(arguments: &RunArgs, kind: Kind) -> Result<Option<(PathBuf, Table)>> {
    let Some(file) = settings_file(arguments)? else { return Ok(None) };
    let mut table = read(&file)?;
    kind.expect(&table, &file)?;
    give_way(&mut table, arguments);
    Ok(Some((file, table)))
}

/// Leaves out the settings of a file that an option replaces though it has another name.
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
    // Whole epochs were asked for. What a run that goes on makes of its length is decided later.
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

/// The file and the settings, as [`resolve`](super::overlay::resolve) takes them.
pub(super) fn borrowed(file: Option<&(PathBuf, Table)>) -> Option<(&Path, Table)> {
    file.map(|(path, table)| (path.as_path(), table.clone()))
}

/// Refuses changes of settings that a run cannot go on with: its model, its data and their order, its precision. The device may change;
/// another device rounds differently.
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
