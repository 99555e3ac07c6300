//! Loads the model of a run directory, of a checkpoint, or of a safetensors file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use burn::module::Module;
use kiln_compression::{FakeQuantizer, Nest, Quantization, QuantizedModel, Range, reshape_like, set_input_ranges};
use kiln_data::printable;
use kiln_models::SafetensorsModel;
use kiln_precision::{Policy, uncast, widened};
use kiln_runs::{CHECKPOINTS, CONFIG};
use kiln_training::{Checkpoints, load_model};

use super::compression::{CompressionSettings, simulate_inputs};

/// The file that each checkpoint has.
pub(super) const MANIFEST: &str = "manifest.json";
/// The file of a run's weights in its directory.
pub const MODEL: &str = "model.safetensors";
/// The file of quantised weights in a run directory.
pub const QUANTIZED: &str = "quantized.safetensors";
/// The file of the ranges of layers' inputs, beside the quantised weights.
pub const INPUT_RANGES: &str = "input-ranges.json";

/// Loads the model of a run directory (from its newest whole checkpoint), of one checkpoint, or of a safetensors file. Its parameters are
/// f32, also those that were saved in 16 bits.
///
/// # Errors
/// Errors of a file that cannot be read, or that belongs to another model.
pub fn load_any<M: SafetensorsModel>(model: M, path: &Path) -> Result<M> {
    match checkpoint_of(path)? {
        Some(checkpoint) => Ok(widened(load_model(model, checkpoint)?)),
        None => Ok(widened(model.load_safetensors(path)?)),
    }
}

/// Gives `model` the shapes that its compression says.
pub(super) fn shaped<M: Module>(
    model: M,
    compression: Option<&CompressionSettings>,
) -> Result<M, kiln_compression::Error> {
    match compression.and_then(|compression| compression.shapes.as_ref()) {
        Some(shapes) => reshape_like(model, shapes),
        None => Ok(model),
    }
}

/// Whether a directory holds a model that was quantised without training. It has integers, and no checkpoint to continue from.
///
/// # Errors
/// The error of a directory of checkpoints that cannot be listed.
pub fn is_untrained(directory: &Path) -> Result<bool> {
    let quantized = directory.join(QUANTIZED).is_file();
    Ok(quantized && Checkpoints::new(directory.join(CHECKPOINTS), 1)?.newest()?.is_none())
}

/// The settings file of the run that a checkpoint belongs to: beside or above it.
pub fn settings_beside(checkpoint: &Path) -> Option<PathBuf> {
    let folders = checkpoint.ancestors().take(3); // the run, or the run above checkpoints/step-N
    folders.map(|folder| folder.join(CONFIG)).find(|file| file.is_file())
}

/// Loads a model as [`load_any`] does, and returns it plain: the attachments of `compression`, in the run that `path` belongs to, are
/// merged into the weights. A safetensors file is plain already.
///
/// # Errors
/// Those of [`load_any`], and a compression that does not fit the model.
pub fn load_merged<M: SafetensorsModel>(plain: M, compression: Option<&CompressionSettings>, path: &Path) -> Result<M> {
    let shaped = shaped(plain, compression)?;
    if is_untrained(path)? {
        return Ok(QuantizedModel::load(path.join(QUANTIZED), shaped)?.0);
    }
    match compression.filter(|compression| compression.attaches()) {
        Some(compression) if checkpoint_of(path)?.is_some() => {
            let attached = load_any(compression.attach(shaped, &Policy::default())?, path)?;
            Ok(uncast(|| attached.materialize()))
        }
        _ => load_any(shaped, path),
    }
}

/// Loads the model that `path` names for evaluation: with everything that its run attached, under `policy`. For the directory of a
/// quantised model it is the model of the integers.
///
/// # Errors
/// Those of [`load_any`], and a compression that does not fit the model.
pub fn load_to_evaluate<M: SafetensorsModel>(
    plain: M,
    compression: Option<&CompressionSettings>,
    policy: &Policy,
    path: &Path,
) -> Result<M> {
    let Some(compression) = compression else { return Ok(policy.autocast(load_any(plain, path)?)?) };
    let shaped = shaped(plain, Some(compression))?;
    let quantized = path.join(QUANTIZED);
    if quantized.is_file() {
        return integers(&quantized, shaped, policy, &path.join(INPUT_RANGES));
    }
    match checkpoint_of(path)? {
        Some(_) => load_any(compression.attach(shaped, policy)?, path),
        // A file has no attachments, because they were merged into it.
        None => Ok(policy.autocast(load_any(shaped, path)?)?),
    }
}

/// The model of quantised weights in a file, with the ranges of inputs in another file, if it exists.
fn integers<M: SafetensorsModel>(weights: &Path, plain: M, policy: &Policy, ranges: &Path) -> Result<M> {
    let (model, integers) = QuantizedModel::load(weights, plain)?;
    let ranges: BTreeMap<String, Range> = match ranges.is_file() {
        true => {
            let text = std::fs::read_to_string(ranges)?;
            serde_json::from_str(&text).with_context(|| format!("cannot read '{}'", printable(&ranges)))?
        }
        false => BTreeMap::new(),
    };
    let inputs = inputs_of(&integers, &model, &ranges)?;
    let cast = policy.reparameterizer(&model)?;
    let model = model.apply_reparameterization(Nest::new(Nest::optional(Some(integers.packing()), inputs), cast));
    Ok(set_input_ranges(model, &ranges)?)
}

/// The simulation of the inputs of layers with quantised weights, if there are ranges.
fn inputs_of<M: Module>(
    integers: &QuantizedModel,
    model: &M,
    ranges: &BTreeMap<String, Range>,
) -> Result<Option<FakeQuantizer>> {
    if ranges.is_empty() {
        return Ok(None);
    }
    let only = integers.weights().keys().cloned().collect();
    let settings = Quantization { only, ..Quantization::default() };
    let inputs = FakeQuantizer::of(model, &settings)?.with_inputs(0.0)?.inputs_only();
    simulate_inputs();
    Ok(Some(inputs))
}

/// The checkpoint that a path names: the path itself, or the newest whole one of a run directory. `None` for a file.
///
/// # Errors
/// The error of a directory without a whole checkpoint.
pub fn checkpoint_of(path: &Path) -> Result<Option<PathBuf>> {
    if path.join(MANIFEST).exists() {
        return Ok(Some(path.to_owned()));
    }
    if !path.is_dir() {
        return Ok(None);
    }
    match Checkpoints::new(path.join(CHECKPOINTS), 1)?.newest()? {
        Some(newest) => Ok(Some(newest)),
        None => bail!("cannot load '{}': there is no whole checkpoint in it", printable(&path)),
    }
}

/// The best checkpoint of a run directory.
///
/// # Errors
/// The error of a directory without one.
pub fn best_of(run: &Path) -> Result<PathBuf> {
    Checkpoints::new(run.join(CHECKPOINTS), 1)?.best().with_context(|| {
        format!(
            "'{}' has no best checkpoint, expected the directory of a run whose model was evaluated",
            printable(&run)
        )
    })
}
