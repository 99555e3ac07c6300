//! The model of a run directory, of a checkpoint, or of a safetensors file.

use std::path::Path;

use anyhow::{Result, bail};
use kiln_models::SafetensorsModel;
use kiln_training::{Checkpoints, load_model};

/// The folder of a run directory that its checkpoints are in.
pub const CHECKPOINTS: &str = "checkpoints";

/// The model of a run directory (its newest whole checkpoint), of one checkpoint, or of a safetensors file.
///
/// # Errors
/// A file that cannot be read, and one of another model.
pub fn load_any<M: SafetensorsModel>(model: M, path: &Path) -> Result<M> {
    if path.join("manifest.json").exists() {
        return Ok(load_model(model, path)?);
    }
    if path.is_dir() {
        return match Checkpoints::new(path.join(CHECKPOINTS), 1)?.newest()? {
            Some(newest) => Ok(load_model(model, newest)?),
            None => bail!("cannot load '{}': there is no whole checkpoint in it", path.display()),
        };
    }
    Ok(model.load_safetensors(path)?)
}
