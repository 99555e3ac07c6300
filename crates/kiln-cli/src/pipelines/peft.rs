//! Adapters of a decoder in peft's folders.

use std::path::Path;

use anyhow::{Result, bail};
use kiln_compression::{AdapterKind, Adapters, Error};
use kiln_data::printable;
use kiln_models::DecoderConfig;

use super::compression::LoraSettings;
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

/// The settings of a run that begins with the adapters of a folder.
///
/// # Errors
/// [`Usage`] for a folder that peft did not write, and those of the files.
pub(crate) fn settings(folder: &Path, base_bits: Option<u8>) -> Result<LoraSettings> {
    if !folder.join(CONFIG).is_file() {
        bail!(Usage(format!(
            "--adapters is '{}', which has no {CONFIG}, expected a folder of peft; --from takes the adapters of a run",
            printable(&folder)
        )));
    }
    let adapters = adapters(folder)?;
    let AdapterKind { rank, alpha, dora } = adapters.kind()?;
    let targets = adapters.iter().map(|(path, _)| path.to_owned()).collect();
    Ok(LoraSettings { rank, alpha, targets, dora, base_bits, from: Some(folder.to_owned()) })
}
