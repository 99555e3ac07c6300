//! Safetensors files under the names of the reference implementations.

use std::path::Path;

use burn::module::Module;
use burn::store::{BurnToPyTorchAdapter, KeyRemapper, ModuleSnapshot, PyTorchToBurnAdapter, SafetensorsStore};

use crate::{Error, Gpt, ResNet};

/// Reading and writing a model as safetensors under its reference implementation's names and layouts.
///
/// A [`ResNet`] file loads into torchvision's `resnet18` and its kin, a [`Gpt`] file into
/// transformers' `GPT2LMHeadModel`, and the other way round.
pub trait Checkpoint: Module + Sized {
    #[doc(hidden)]
    fn reading(store: SafetensorsStore) -> SafetensorsStore;
    #[doc(hidden)]
    fn writing(store: SafetensorsStore) -> SafetensorsStore;

    /// The model with all parameters and buffers read from `path`. Tensors of the file that the
    /// model does not have (torch's `num_batches_tracked`, a stored causal mask) are passed over.
    ///
    /// # Errors
    /// [`Error::Load`] when the file is unreadable, lacks a tensor, or holds one of another shape.
    fn load_safetensors(mut self, path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let fail = |reason: String| Error::Load { path: path.to_owned(), reason };
        if !path.is_file() {
            return Err(fail("no such file".into()));
        }
        let mut store = Self::reading(SafetensorsStore::from_file(path)).allow_partial(true).validate(false);
        let result = self.load_from(&mut store).map_err(|e| fail(one_line(&e)))?;
        if let Some(error) = result.errors.first() {
            return Err(fail(format!("not a checkpoint of this model: {}", one_line(error))));
        }
        if let Some((name, _)) = result.missing.first() {
            let (missing, found) = (result.missing.len(), result.applied.len());
            return Err(fail(format!(
                "not a checkpoint of this model: {missing} of {} tensors are missing, the first is '{name}'",
                missing + found
            )));
        }
        Ok(self)
    }

    /// Writes all parameters and buffers to `path`, replacing what was there once the new file is whole.
    ///
    /// # Errors
    /// [`Error::Save`] when the file cannot be written.
    fn save_safetensors(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        let store = SafetensorsStore::from_file(path).clear_metadata().metadata("format", "pt").overwrite(true);
        // `valid` folds the running statistics of all threads into the value that is saved.
        self.valid()
            .save_into(&mut Self::writing(store))
            .map_err(|e| Error::Save { path: path.to_owned(), reason: one_line(&e) })
    }
}

fn one_line(error: &impl std::fmt::Display) -> String {
    let text = error.to_string();
    text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("unknown error").to_owned()
}

fn remap(patterns: &[(&str, &str)]) -> KeyRemapper {
    KeyRemapper::from_patterns(patterns.to_vec()).unwrap_or_default()
}

impl Checkpoint for ResNet {
    fn reading(store: SafetensorsStore) -> SafetensorsStore {
        store
            .remap(remap(&[(r"\.downsample\.0\.", ".downsample.conv."), (r"\.downsample\.1\.", ".downsample.norm.")]))
            .with_from_adapter(PyTorchToBurnAdapter)
    }

    fn writing(store: SafetensorsStore) -> SafetensorsStore {
        store
            .with_to_adapter(BurnToPyTorchAdapter)
            .remap(remap(&[(r"\.downsample\.conv\.", ".downsample.0."), (r"\.downsample\.norm\.", ".downsample.1.")]))
    }
}

// Hugging Face keeps GPT-2's linear weights as [in, out] ("Conv1D"), which is burn's own layout, so
// that only the layer norms' names differ. Files from the hub leave out the prefix.
impl Checkpoint for Gpt {
    fn reading(store: SafetensorsStore) -> SafetensorsStore {
        store.remap(remap(&[
            (r"^transformer\.", ""),
            (r"(ln_1|ln_2|ln_f)\.weight$", "$1.gamma"),
            (r"(ln_1|ln_2|ln_f)\.bias$", "$1.beta"),
        ]))
    }

    fn writing(store: SafetensorsStore) -> SafetensorsStore {
        store.remap(remap(&[(r"\.gamma$", ".weight"), (r"\.beta$", ".bias"), (r"^", "transformer.")]))
    }
}
