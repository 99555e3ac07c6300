//! The configuration of any decoder of this crate.

use std::ops::Range;
use std::path::Path;

use burn::tensor::{Device, Tensor};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::model::Decoder;
use crate::Error;
use crate::gpt::GptConfig;
use crate::layers::{STD, normal};
use crate::llama::LlamaConfig;
use crate::safetensors::{Matched, SafetensorsModel};

/// The configuration of a [`Decoder`]. In a file it is the network's own, by whose fields it is told.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
#[non_exhaustive]
#[allow(missing_docs, reason = "named after the networks")]
pub enum DecoderConfig {
    Gpt(GptConfig),
    Llama(LlamaConfig),
}

/// The field that the configurations of the Llama family alone have.
const OF_LLAMA: &str = "kv_heads";

impl<'de> Deserialize<'de> for DecoderConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = Map::deserialize(deserializer)?;
        let of_llama = fields.contains_key(OF_LLAMA);
        let fields = Value::Object(fields);
        match of_llama {
            true => LlamaConfig::deserialize(fields).map(Self::Llama),
            false => GptConfig::deserialize(fields).map(Self::Gpt),
        }
        .map_err(D::Error::custom)
    }
}

/// Evaluates `$do` on the configuration of the network inside of a [`DecoderConfig`].
macro_rules! each {
    ($decoder:expr, $config:ident => $do:expr) => {
        match $decoder {
            DecoderConfig::Gpt($config) => $do,
            DecoderConfig::Llama($config) => $do,
        }
    };
}

impl DecoderConfig {
    /// Number of distinct tokens.
    pub fn vocab(&self) -> usize {
        each!(self, config => config.vocab)
    }

    /// Longest sequence, in tokens.
    pub fn context(&self) -> usize {
        each!(self, config => config.context)
    }

    /// Sets the longest sequence, in tokens.
    pub fn with_context(mut self, context: usize) -> Self {
        each!(&mut self, config => config.context = context);
        self
    }

    /// Whether the blocks and the loss use kiln-layers' operations.
    pub fn is_lean(&self) -> bool {
        each!(self, config => config.lean)
    }

    /// Sets whether the blocks and the loss use kiln-layers' operations (true) or burn's own (false).
    pub fn with_lean(mut self, lean: bool) -> Self {
        each!(&mut self, config => config.lean = lean);
        self
    }

    /// The path of the [words](Decoder::words).
    pub fn words_path(&self) -> &'static str {
        match self {
            Self::Gpt(_) => "wte.weight",
            Self::Llama(_) => "embed_tokens.weight",
        }
    }

    /// Some rows of the initial [words](Decoder::words), for a model that does not fit into memory. On the CPU device, rows that are made one
    /// after the other have the same bits as all rows together.
    pub fn initial_words(&self, rows: Range<usize>, device: &Device) -> Tensor<2> {
        let width = each!(self, config => config.width);
        normal(STD).init::<2, _>([rows.len(), width], device).into_value()
    }

    /// Builds the model on `device`, with new values.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`].
    pub fn init(&self, device: &Device) -> Result<Decoder, Error> {
        Ok(match self {
            Self::Gpt(config) => Decoder::Gpt(config.init(device)?),
            Self::Llama(config) => Decoder::Llama(config.init(device)?),
        })
    }

    /// Builds the model of a folder on `device`, in f32, with the weights of the folder: `model.safetensors`, or all files that
    /// `model.safetensors.index.json` lists. Tensors are read one after the other.
    ///
    /// # Errors
    /// Those of [`init`](Self::init). [`Error::Load`] when a file cannot be read, lacks a tensor of the model, or has one that the model does
    /// not have, and [`Error::Shape`] for a tensor of another shape.
    pub fn load(&self, folder: impl AsRef<Path>, device: &Device) -> Result<Decoder, Error> {
        let folder = folder.as_ref();
        let (model, matched) = self.init(device)?.load_matching(folder)?;
        complete(&matched, folder)?;
        Ok(model)
    }

    /// Checks that the files in `folder` have all tensors of the model, in its shapes, and no others. Their bytes are not read.
    ///
    /// # Errors
    /// Those of [`load`](Self::load).
    pub fn check_folder(&self, folder: impl AsRef<Path>) -> Result<(), Error> {
        let folder = folder.as_ref();
        complete(&self.init(&Device::capture())?.matching(folder)?.1, folder)
    }
}

/// Refuses a model of which `folder` has not all tensors, and a folder with tensors of another one.
fn complete(matched: &Matched, folder: &Path) -> Result<(), Error> {
    // The output layer of a tied model, and what can be computed from the configuration, may be in a file twice.
    let implied = |name: &str| name == "lm_head.weight" || name.ends_with(".rotary_emb.inv_freq") || is_mask(name);
    let unused: Vec<&String> = matched.unused.iter().filter(|name| !implied(name)).collect();
    let fail = |count, what: &str, name: &String| {
        let reason = format!("{count} tensors {what}, the first is '{name}'; expected those of config.json");
        Err(Error::Load { path: folder.to_owned(), reason })
    };
    match (matched.new.first(), unused.first()) {
        (Some(name), _) => fail(matched.new.len(), "are missing", name),
        (None, Some(name)) => fail(unused.len(), "are not of this model", name),
        (None, None) => Ok(()),
    }
}

/// Whether a tensor is the causal mask that old files of GPT-2 have.
fn is_mask(name: &str) -> bool {
    name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias")
}
