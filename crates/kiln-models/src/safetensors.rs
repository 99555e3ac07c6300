//! Safetensors files under the names of the reference implementations.

use std::path::Path;

use burn::module::Module;
use burn::store::burn_pack::Tensor;
use burn::store::{
    BurnToPyTorchAdapter, IdentityAdapter, KeyRemapper, ModuleAdapter, ModuleContext, ModuleSnapshot,
    PyTorchToBurnAdapter,
};

use crate::Error;
use crate::gpt::Gpt;
use crate::llama::Llama;
use crate::matching::{Found, Mismatch, found, given, in_f32};
use crate::mobilenet::MobileNet;
use crate::resnet::ResNet;
use crate::safetensors_file;
use crate::shufflenet_v2::ShuffleNetV2;
use crate::unet::Unet;
use crate::vit::Vit;

/// A model that is read from and written to safetensors files under the names and layouts of its reference implementation.
///
/// Files of a [`ResNet`], a [`MobileNet`] and a [`ShuffleNetV2`] load into torchvision's models of these names, files of a [`Vit`] into
/// timm's, files of a [`Unet`] into segmentation_models_pytorch's, files of a [`Gpt`] into transformers' `GPT2LMHeadModel` and files of a
/// [`Llama`] into its model of the same `model_type`, and the other way round.
///
/// A path that is read may also be the index of a model in several files (`model.safetensors.index.json`), or the folder that has the files.
pub trait SafetensorsModel: Module + Sized {
    #[doc(hidden)]
    fn reading(&self) -> (Box<dyn ModuleAdapter>, KeyRemapper);
    #[doc(hidden)]
    fn writing(&self, values: Values) -> (Box<dyn ModuleAdapter>, KeyRemapper);
    /// The path of the layer whose outputs are the classes, if the model has such a layer of its own.
    #[doc(hidden)]
    fn head_path(&self) -> Option<&'static str>;

    /// Reads all parameters and buffers of the model from `path`. Tensors of the file that the model does not have (torch's
    /// `num_batches_tracked`, a stored causal mask) are ignored.
    ///
    /// # Errors
    /// [`Error::Load`] when the file cannot be read, lacks a tensor, or has a tensor of another shape.
    fn load_safetensors(self, path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let fail = |reason: String| Error::Load { path: path.to_owned(), reason };
        let (tensors, Found { taken, missing, .. }) = found_in(&self, path, None).map_err(|error| match error {
            Error::Shape { name, expected, found, .. } => {
                fail(format!("not a checkpoint of this model: '{name}' is {found:?}, expected {expected:?}"))
            }
            other => other,
        })?;
        if let Some(first) = missing.first() {
            let (missing, found) = (missing.len(), taken.len());
            return Err(fail(format!(
                "not a checkpoint of this model: {missing} of {} tensors are missing, the first is '{first}'",
                missing + found
            )));
        }
        given(self, tensors).map_err(fail)
    }

    /// Reads those parameters and buffers from `path` whose names the model has, in f32, to train the model on other data. The layer of
    /// classes keeps its values if the file has another number of classes. Any other difference in shape is an error.
    ///
    /// # Errors
    /// Those of [`matching`](Self::matching).
    fn load_matching(self, path: impl AsRef<Path>) -> Result<(Self, Matched), Error> {
        let path = path.as_ref();
        let (tensors, matched) = self.matching(path)?;
        let model = given(self, tensors).map_err(|reason| Error::Load { path: path.to_owned(), reason })?;
        Ok((model, matched))
    }

    /// The tensors that [`load_matching`](Self::load_matching) reads, in f32 and under the paths of this model. The bytes of each are read when
    /// they are used, so that a model which does not fit into memory can take one after the other.
    ///
    /// # Errors
    /// [`Error::Load`] when the file cannot be read or has no tensor of this model, [`Error::Shape`] for a tensor of another shape.
    fn matching(&self, path: impl AsRef<Path>) -> Result<(Vec<Tensor>, Matched), Error> {
        let path = path.as_ref();
        let (tensors, Found { taken, missing, unused }) = found_in(self, path, self.head_path())?;
        if taken.is_empty() {
            let first = unused.first().map_or_else(|| "nothing".to_owned(), |name| format!("'{name}'"));
            let reason = format!("no tensor of it fits this model; its first is {first}");
            return Err(Error::Load { path: path.to_owned(), reason });
        }
        // Files of large models are often in 16 bits, and a layer computes in the dtype of its parameters.
        let tensors = tensors.into_iter().map(in_f32).collect();
        Ok((tensors, Matched { taken, new: missing, unused }))
    }

    /// Writes all parameters and buffers to `path`. An older file is replaced when the new one is complete.
    ///
    /// # Errors
    /// [`Error::Save`] when the file cannot be written.
    fn save_safetensors(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.save_safetensors_with(path, IdentityAdapter)
    }

    /// Writes as [`save_safetensors`](Self::save_safetensors) does, with the tensors that `values` gives in place of the model's own, for
    /// a model whose values are elsewhere. One tensor is read at a time, and one in a file some MiB at a time.
    ///
    /// # Errors
    /// [`Error::Save`] when a tensor cannot be read, or the file not be written.
    fn save_safetensors_with(&self, path: impl AsRef<Path>, values: impl ModuleAdapter + 'static) -> Result<(), Error> {
        let path = path.as_ref();
        let (adapter, remapper) = self.writing(Values(Box::new(values)));
        // `valid` folds the running statistics of all threads into the value that is saved.
        let tensors = remapper.remap(self.valid().collect(None, Some(adapter), false)).0;
        safetensors_file::write(path, tensors).map_err(|reason| Error::Save { path: path.to_owned(), reason })
    }
}

/// Where the values come from that are written.
#[doc(hidden)]
#[derive(Clone)]
pub struct Values(Box<dyn ModuleAdapter>);

impl ModuleAdapter for Values {
    fn adapt(&self, tensor: Tensor, context: ModuleContext<'_>) -> Tensor {
        self.0.adapt(tensor, context)
    }

    fn clone_box(&self) -> Box<dyn ModuleAdapter> {
        Box::new(self.clone())
    }
}

/// The paths of a model's tensors and of a file's tensors, after the model was read from the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Matched {
    /// Tensors of the model that have the values of the file.
    pub taken: Vec<String>,
    /// Tensors of the model that the file lacks, or that it has for another number of classes. They keep their initial values.
    pub new: Vec<String>,
    /// Tensors of the file that the model does not have.
    pub unused: Vec<String>,
}

/// The tensors of the file at `path` that `model` has. The layer at `head` may have other shapes; it is missing then.
fn found_in<M: SafetensorsModel>(model: &M, path: &Path, head: Option<&str>) -> Result<(Vec<Tensor>, Found), Error> {
    let tensors = safetensors_file::read(path).map_err(|reason| Error::Load { path: path.to_owned(), reason })?;
    let (adapter, remapper) = model.reading();
    let (tensors, names) = found(model, remapper.remap(tensors).0, &*adapter, head);
    let path = path.to_owned();
    match tensors {
        Ok(tensors) => Ok((tensors, names)),
        Err(Mismatch::Shape { name, expected, found }) => Err(Error::Shape { path, name, expected, found }),
        Err(Mismatch::Kind { name, expected, found }) => {
            Err(Error::Load { path, reason: format!("'{name}' is {found:?} in the file, expected {expected}") })
        }
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
            fn reading(&self) -> (Box<dyn ModuleAdapter>, KeyRemapper) {
                let remapper = renamed(&self.names(), |(ours, theirs)| [theirs, ours]);
                (Box::new(PyTorchToBurnAdapter), remapper)
            }

            fn writing(&self, values: Values) -> (Box<dyn ModuleAdapter>, KeyRemapper) {
                let remapper = renamed(&self.names(), |(ours, theirs)| [ours, theirs]);
                (Box::new(values.chain(BurnToPyTorchAdapter)), remapper)
            }

            fn head_path(&self) -> Option<&'static str> {
                Some($head)
            }
        }
    )+};
}

by_names!(MobileNet: "classifier", ShuffleNetV2: "fc", Unet: "head", Vit: "head");

impl SafetensorsModel for ResNet {
    fn reading(&self) -> (Box<dyn ModuleAdapter>, KeyRemapper) {
        let names = [(r"\.downsample\.0\.", ".downsample.conv."), (r"\.downsample\.1\.", ".downsample.norm.")];
        (Box::new(PyTorchToBurnAdapter), remap(&names))
    }

    fn writing(&self, values: Values) -> (Box<dyn ModuleAdapter>, KeyRemapper) {
        let names = [(r"\.downsample\.conv\.", ".downsample.0."), (r"\.downsample\.norm\.", ".downsample.1.")];
        (Box::new(values.chain(BurnToPyTorchAdapter)), remap(&names))
    }

    fn head_path(&self) -> Option<&'static str> {
        Some("fc")
    }
}

// Hugging Face stores weights of linear layers as torch does, [out, in].
impl SafetensorsModel for Llama {
    fn reading(&self) -> (Box<dyn ModuleAdapter>, KeyRemapper) {
        (Box::new(PyTorchToBurnAdapter), remap(&[(r"^model\.", ""), (r"norm\.weight$", "norm.gamma")]))
    }

    fn writing(&self, values: Values) -> (Box<dyn ModuleAdapter>, KeyRemapper) {
        let names = [(r"norm\.gamma$", "norm.weight"), (r"^(embed_tokens|layers|norm)\.", "model.$1.")];
        (Box::new(values.chain(BurnToPyTorchAdapter)), remap(&names))
    }

    /// The output layer belongs to the tokens of the model.
    fn head_path(&self) -> Option<&'static str> {
        None
    }
}

// Hugging Face stores GPT-2's linear weights as [in, out] ("Conv1D"), which is burn's own layout: only the names of the layer
// norms differ. Files from the hub have no prefix.
impl SafetensorsModel for Gpt {
    fn reading(&self) -> (Box<dyn ModuleAdapter>, KeyRemapper) {
        let names = [
            (r"^transformer\.", ""),
            (r"(ln_1|ln_2|ln_f)\.weight$", "$1.gamma"),
            (r"(ln_1|ln_2|ln_f)\.bias$", "$1.beta"),
        ];
        (Box::new(IdentityAdapter), remap(&names))
    }

    fn writing(&self, values: Values) -> (Box<dyn ModuleAdapter>, KeyRemapper) {
        (Box::new(values), remap(&[(r"\.gamma$", ".weight"), (r"\.beta$", ".bias"), (r"^", "transformer.")]))
    }

    /// The output layer is the embedding of the tokens.
    fn head_path(&self) -> Option<&'static str> {
        None
    }
}
