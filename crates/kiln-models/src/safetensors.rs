//! Safetensors files under the names of the reference implementations.

use std::path::Path;

use burn::module::Module;
use burn::store::{BurnToPyTorchAdapter, KeyRemapper, ModuleSnapshot, PyTorchToBurnAdapter, SafetensorsStore};

use crate::Error;
use crate::gpt::Gpt;
use crate::matching::{Matched, matching, one_line};
use crate::mobilenet_v2::MobileNetV2;
use crate::mobilenet_v3::MobileNetV3;
use crate::resnet::ResNet;
use crate::shufflenet_v2::ShuffleNetV2;
use crate::unet::Unet;
use crate::vit::Vit;

/// A model that is read from and written to safetensors files under the names and layouts of its reference implementation.
///
/// Files of a [`ResNet`], a [`MobileNetV2`], a [`MobileNetV3`] and a [`ShuffleNetV2`] load into torchvision's models of these names, files
/// of a [`Vit`] into timm's, files of a [`Unet`] into segmentation_models_pytorch's, files of a [`Gpt`] into transformers'
/// `GPT2LMHeadModel`, and the other way round.
pub trait SafetensorsModel: Module + Sized {
    #[doc(hidden)]
    fn reading(&self, store: SafetensorsStore) -> SafetensorsStore;
    #[doc(hidden)]
    fn writing(&self, store: SafetensorsStore) -> SafetensorsStore;
    /// The path of the layer whose outputs are the classes, if the model has such a layer of its own.
    #[doc(hidden)]
    fn head_path(&self) -> Option<&'static str>;

    /// Reads all parameters and buffers of the model from `path`. Tensors of the file that the model does not have (torch's
    /// `num_batches_tracked`, a stored causal mask) are ignored.
    ///
    /// # Errors
    /// [`Error::Load`] when the file cannot be read, lacks a tensor, or has a tensor of another shape.
    fn load_safetensors(mut self, path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let fail = |reason: String| Error::Load { path: path.to_owned(), reason };
        if !path.is_file() {
            return Err(fail("no such file".into()));
        }
        let mut store = self.reading(SafetensorsStore::from_file(path)).allow_partial(true).validate(false);
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

    /// Reads those parameters and buffers from `path` whose names the model has, in f32, to train the model on other data. The layer of
    /// classes keeps its values if the file has another number of classes. Any other difference in shape is an error.
    ///
    /// # Errors
    /// [`Error::Load`] when the file cannot be read or has no tensor of this model, [`Error::Shape`] for a tensor of another shape.
    fn load_matching(self, path: impl AsRef<Path>) -> Result<(Self, Matched), Error> {
        let path = path.as_ref();
        let (store, head) = (self.reading(SafetensorsStore::from_file(path)), self.head_path());
        matching(self, path, store, head)
    }

    /// Writes all parameters and buffers to `path`. An older file is replaced when the new one is complete.
    ///
    /// # Errors
    /// [`Error::Save`] when the file cannot be written.
    fn save_safetensors(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        let store = SafetensorsStore::from_file(path).clear_metadata().metadata("format", "pt").overwrite(true);
        // `valid` folds the running statistics of all threads into the value that is saved.
        self.valid()
            .save_into(&mut self.writing(store))
            .map_err(|e| Error::Save { path: path.to_owned(), reason: one_line(&e) })
    }
}

fn remap(patterns: &[(&str, &str)]) -> KeyRemapper {
    KeyRemapper::from_patterns(patterns.to_vec()).unwrap_or_default()
}

/// Renames paths between this crate and the reference's files. The pairs have this crate's path first.
fn renamed(names: &[(String, String)], from: fn(&(String, String)) -> [&str; 2]) -> KeyRemapper {
    let pattern = |pair| {
        let [old, new] = from(pair);
        (format!(r"^{}(\.|$)", old.replace('.', r"\.")), format!("{new}$1"))
    };
    KeyRemapper::from_patterns(names.iter().map(pattern).collect()).unwrap_or_default()
}

/// Implements [`SafetensorsModel`] for a model that lists the names of its layers.
macro_rules! by_names {
    ($($model:ty: $head:literal),+) => {$(
        impl SafetensorsModel for $model {
            fn reading(&self, store: SafetensorsStore) -> SafetensorsStore {
                let remapper = renamed(&self.names(), |(ours, theirs)| [theirs, ours]);
                store.remap(remapper).with_from_adapter(PyTorchToBurnAdapter)
            }

            fn writing(&self, store: SafetensorsStore) -> SafetensorsStore {
                let remapper = renamed(&self.names(), |(ours, theirs)| [ours, theirs]);
                store.with_to_adapter(BurnToPyTorchAdapter).remap(remapper)
            }

            fn head_path(&self) -> Option<&'static str> {
                Some($head)
            }
        }
    )+};
}

by_names!(MobileNetV2: "classifier", MobileNetV3: "classifier", ShuffleNetV2: "fc", Unet: "head", Vit: "head");

impl SafetensorsModel for ResNet {
    fn reading(&self, store: SafetensorsStore) -> SafetensorsStore {
        store
            .remap(remap(&[(r"\.downsample\.0\.", ".downsample.conv."), (r"\.downsample\.1\.", ".downsample.norm.")]))
            .with_from_adapter(PyTorchToBurnAdapter)
    }

    fn writing(&self, store: SafetensorsStore) -> SafetensorsStore {
        store
            .with_to_adapter(BurnToPyTorchAdapter)
            .remap(remap(&[(r"\.downsample\.conv\.", ".downsample.0."), (r"\.downsample\.norm\.", ".downsample.1.")]))
    }

    fn head_path(&self) -> Option<&'static str> {
        Some("fc")
    }
}

// Hugging Face stores GPT-2's linear weights as [in, out] ("Conv1D"), which is burn's own layout: only the names of the layer
// norms differ. Files from the hub have no prefix.
impl SafetensorsModel for Gpt {
    fn reading(&self, store: SafetensorsStore) -> SafetensorsStore {
        store.remap(remap(&[
            (r"^transformer\.", ""),
            (r"(ln_1|ln_2|ln_f)\.weight$", "$1.gamma"),
            (r"(ln_1|ln_2|ln_f)\.bias$", "$1.beta"),
        ]))
    }

    fn writing(&self, store: SafetensorsStore) -> SafetensorsStore {
        store.remap(remap(&[(r"\.gamma$", ".weight"), (r"\.beta$", ".bias"), (r"^", "transformer.")]))
    }

    /// The output layer is the embedding of the tokens.
    fn head_path(&self) -> Option<&'static str> {
        None
    }
}
