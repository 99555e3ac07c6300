//! Adapters of a decoder in peft's folders.

use std::path::Path;

use anyhow::{Result, bail};
use kiln_compression::{AdapterKind, Adapters, Error};
use kiln_data::printable;
use kiln_models::DecoderConfig;

use crate::usage::Usage;

/// The file that makes a folder one of peft.
const CONFIG: &str = "adapter_config.json";
/// What stands before the names of a decoder's layers in transformers, but that of the head.
const ABOVE: [&str; 2] = ["transformer.", "model."];

/// The name of the layer of a parameter in transformers' model.
pub(crate) fn layer(model: &DecoderConfig, parameter: &str) -> String {
    let [gpt, llama] = ABOVE;
    match (parameter.trim_end_matches(".weight"), model) {
        ("lm_head", _) => "lm_head".to_owned(),
        (layer, DecoderConfig::Gpt(_)) => format!("{gpt}{layer}"),
        (layer, _) => format!("{llama}{layer}"),
    }
}

/// The parameter of a layer of transformers' model.
fn parameter(layer: &str) -> String {
    let layer = ABOVE.iter().find_map(|above| layer.strip_prefix(above)).unwrap_or(layer);
    format!("{layer}.weight")
}

/// The adapters in a folder of peft.
///
/// # Errors
/// Those of the files.
pub(crate) fn adapters(folder: &Path) -> Result<Adapters, Error> {
    Adapters::load(folder, parameter)
}

/// Rank, alpha and kind of the adapters in a folder, and the paths of the parameters that have one.
///
/// # Errors
/// [`Usage`] for a folder that peft did not write, and those of the files.
pub(crate) fn described(folder: &Path) -> Result<(AdapterKind, Vec<String>)> {
    if !folder.join(CONFIG).is_file() {
        bail!(Usage(format!(
            "--adapters is '{}', which has no {CONFIG}, expected a folder of peft; --from takes the adapters of a run",
            printable(&folder)
        )));
    }
    let adapters = adapters(folder)?;
    Ok((adapters.kind()?, adapters.iter().map(|(path, _)| path.to_owned()).collect()))
}
