//! The initial state of a new run: weights of a file, or the state of another run.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow};
use kiln_data::printable;
use kiln_models::Matched;
use kiln_report::counted;
use kiln_runs::replace;
use kiln_training::Trainer;
use serde_json::json;

use crate::output::path_json;
use crate::pipelines::{CompressionSettings, Pipeline, RunSettings, checkpoint_of};
use crate::run_directory::RunDirectory;

/// The list of the tensors that `--init` has taken.
const TAKEN: &str = "init.json";
/// The number of layers that a message names.
const SHOWN: usize = 4;

/// Whether a first checkpoint must save the initial weights. A run that is killed before its next checkpoint then continues from them.
pub(super) fn saves_first(run: &RunSettings, compression: Option<&CompressionSettings>) -> bool {
    compression.is_some() || run.init.is_some() || run.from.is_some()
}

/// Gives a new run the weights and the optimizer's state of the run that `--from` names, if any. All replicas must call it.
pub(super) fn start_from<P: Pipeline>(trainer: &mut Trainer<P>, run: &RunSettings) -> Result<()> {
    let Some(path) = &run.from else { return Ok(()) };
    let missing =
        || anyhow!("cannot start from '{}': expected a run directory or one of its checkpoints", printable(&path));
    let checkpoint = checkpoint_of(path)?.ok_or_else(missing)?;
    trainer.start_from(&checkpoint).map_err(|error| {
        let advice = format!("--init {} takes the weights that fit, without the optimizer's state", printable(&path));
        anyhow!("{error}; {advice}")
    })?;
    if run.replica.index() == 0 {
        tracing::info!("weights and optimizer state from {}", printable(&checkpoint));
    }
    Ok(())
}

/// Reports which tensors of a file the model has taken, and writes the whole list into the directory.
pub(super) fn report_taken(directory: &RunDirectory, run: &RunSettings, matched: &Matched) -> Result<()> {
    let Matched { taken, new, unused, .. } = matched;
    let file = run.init.as_deref().map(printable).unwrap_or_default();
    tracing::info!("{file}: {} of {} tensors taken", taken.len(), taken.len() + new.len());
    if !new.is_empty() {
        tracing::info!("new: {}", layers(new));
    }
    let unused: Vec<String> = unused.iter().filter(|name| !is_bookkeeping(name)).cloned().collect();
    if !unused.is_empty() {
        tracing::info!("not used: {}", layers(&unused));
    }
    let list =
        json!({ "file": run.init.as_deref().map(path_json), "taken": taken, "new": new, "unused": matched.unused });
    Ok(replace(&directory.file(TAKEN), (serde_json::to_string_pretty(&list)? + "\n").as_bytes())?)
}

/// Whether a tensor of a file is not a weight: torch's counters of batches, and stored causal masks.
fn is_bookkeeping(name: &str) -> bool {
    [".num_batches_tracked", ".attn.bias", ".attn.masked_bias"].iter().any(|end| name.ends_with(end))
}

/// The names of the first layers of these tensors, and the number of further ones.
fn layers(names: &[String]) -> String {
    let mut tensors: BTreeMap<&str, usize> = BTreeMap::new();
    for name in names {
        *tensors.entry(name.rsplit_once('.').map_or(name.as_str(), |(layer, _)| layer)).or_default() += 1;
    }
    let shown: Vec<String> = tensors.keys().take(SHOWN).map(printable).collect();
    match tensors.len() - shown.len() {
        0 => shown.join(", "),
        more => format!("{} and {} ({TAKEN} lists them)", shown.join(", "), counted(more, "more layer")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_layers_is_short() {
        let names = |count: usize| -> Vec<String> {
            (0..count).flat_map(|i| ["weight", "bias"].map(|end| format!("h.{i}.{end}"))).collect()
        };
        assert_eq!(layers(&names(2)), "h.0, h.1");
        assert_eq!(layers(&names(9)), "h.0, h.1, h.2, h.3 and 5 more layers (init.json lists them)");
        assert_eq!(layers(&["cls_token".into()]), "cls_token");
        assert!(is_bookkeeping("bn1.num_batches_tracked") && !is_bookkeeping("h.0.attn.c_attn.bias"));
    }
}
