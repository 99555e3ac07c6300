//! The configuration of any decoder of this crate, as Hugging Face's folders have it.

use std::path::Path;

use burn::tensor::Device;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::model::Decoder;
use crate::Error;
use crate::gpt::GptConfig;
use crate::llama::{LlamaConfig, Scaling};
use crate::safetensors::SafetensorsModel;

/// The configuration of a [`Decoder`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
#[allow(missing_docs, reason = "named after the networks")]
pub enum DecoderConfig {
    Gpt(GptConfig),
    Llama(LlamaConfig),
}

/// The file of the configuration in a folder.
const FILE: &str = "config.json";

/// The values of `model_type` that are known.
const TYPES: &str = "gpt2, llama, mistral, qwen2, qwen3";

impl DecoderConfig {
    /// The configuration in `config.json` of the folder of a Hugging Face model, whose `model_type` is gpt2, llama, mistral, qwen2 or qwen3.
    ///
    /// # Errors
    /// [`Error::Load`] when the file cannot be read, is of another kind of model, or has a setting that no [`Decoder`] has: the reason names it
    /// and what is accepted.
    pub fn from_folder(folder: impl AsRef<Path>) -> Result<Self, Error> {
        let path = folder.as_ref().join(FILE);
        let read = || {
            let text = std::fs::read_to_string(&path)
                .map_err(|e| format!("{e}; expected the folder of a Hugging Face model, which has this file"))?;
            Self::parsed(&text)
        };
        read().map_err(|reason| Error::Load { path: path.clone(), reason })
    }

    /// The configuration in the text of a `config.json`.
    fn parsed(text: &str) -> Result<Self, String> {
        let values: Value = serde_json::from_str(text).map_err(|e| format!("it is no JSON: {e}"))?;
        let text = |name: &str| values.get(name).and_then(Value::as_str);
        let of_kind = |expected| move |e: serde_json::Error| format!("not the configuration of {expected}: {e}");
        if let Some(quantized) = values.get("quantization_config").filter(|value| !value.is_null()) {
            let method = quantized.get("quant_method").and_then(Value::as_str).unwrap_or("unknown");
            return Err(format!("its weights are quantised ('{method}'), expected a model in f32, f16 or bf16"));
        }
        match text("model_type") {
            Some("gpt2") => {
                let file: Gpt2File = serde_json::from_value(values.clone()).map_err(of_kind("a GPT-2"))?;
                file.config().map(Self::Gpt)
            }
            Some(kind @ ("llama" | "mistral" | "qwen2" | "qwen3")) => {
                let file: LlamaFile = serde_json::from_value(values.clone()).map_err(of_kind(kind))?;
                file.config(kind).map(Self::Llama)
            }
            Some(other) => Err(format!("model_type is '{other}', expected one of {TYPES}")),
            None => Err(format!("it has no model_type, expected one of {TYPES}")),
        }
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
        // The output layer of a tied model, and what can be computed from the configuration, may be in a file twice.
        let implied = |name: &str| name == "lm_head.weight" || name.ends_with(".rotary_emb.inv_freq") || is_mask(name);
        let unused: Vec<&String> = matched.unused.iter().filter(|name| !implied(name)).collect();
        let fail = |count, what: &str, name: &String| {
            let reason = format!("{count} tensors {what}, the first is '{name}'; expected those of {FILE}");
            Err(Error::Load { path: folder.to_owned(), reason })
        };
        match (matched.new.first(), unused.first()) {
            (Some(name), _) => fail(matched.new.len(), "are missing", name),
            (None, Some(name)) => fail(unused.len(), "are not of this model", name),
            (None, None) => Ok(model),
        }
    }
}

/// Whether a tensor is the causal mask that old files of GPT-2 have.
fn is_mask(name: &str) -> bool {
    name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias")
}

/// What a `config.json` of GPT-2 says.
#[derive(Deserialize)]
struct Gpt2File {
    vocab_size: usize,
    n_positions: usize,
    n_layer: usize,
    n_head: usize,
    n_embd: usize,
    n_inner: Option<usize>,
    activation_function: Option<String>,
    layer_norm_epsilon: Option<f64>,
    tie_word_embeddings: Option<bool>,
}

impl Gpt2File {
    fn config(self) -> Result<GptConfig, String> {
        let Self { vocab_size, n_positions, n_layer, n_head, n_embd, .. } = self;
        if let Some(other) = self.activation_function.filter(|name| name != "gelu_new") {
            return Err(format!("activation_function is '{other}', expected gelu_new"));
        }
        if let Some(inner) = self.n_inner.filter(|inner| *inner != 4 * n_embd) {
            return Err(format!("n_inner is {inner}, expected four times n_embd, {}", 4 * n_embd));
        }
        if let Some(epsilon) = self.layer_norm_epsilon.filter(|epsilon| (*epsilon - 1e-5).abs() > 1e-12) {
            return Err(format!("layer_norm_epsilon is {epsilon}, expected 1e-5"));
        }
        if self.tie_word_embeddings == Some(false) {
            return Err("tie_word_embeddings is false, expected true".into());
        }
        let sized = GptConfig::tiny(vocab_size, n_positions).with_layers(n_layer);
        Ok(sized.with_heads(n_head).with_width(n_embd))
    }
}

/// What a `config.json` of the Llama family says.
#[derive(Deserialize)]
struct LlamaFile {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    max_position_embeddings: usize,
    rms_norm_eps: Option<f64>,
    hidden_act: Option<String>,
    rope_theta: Option<f64>,
    rope_scaling: Option<Rope>,
    /// Both of the above, since transformers 5.
    rope_parameters: Option<Rope>,
    tie_word_embeddings: Option<bool>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    sliding_window: Option<usize>,
    use_sliding_window: Option<bool>,
    max_window_layers: Option<usize>,
    layer_types: Option<Vec<String>>,
}

#[derive(Default, Deserialize)]
struct Rope {
    rope_theta: Option<f64>,
    #[serde(alias = "type")]
    rope_type: Option<String>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<usize>,
    partial_rotary_factor: Option<f64>,
}

impl Rope {
    fn scaling(&self) -> Result<Scaling, String> {
        let needed = |value: Option<f64>, name| value.ok_or_else(|| format!("its rotary frequencies have no {name}"));
        if let Some(part) = self.partial_rotary_factor.filter(|part| *part != 1.0) {
            return Err(format!("partial_rotary_factor is {part}, expected 1"));
        }
        match self.rope_type.as_deref() {
            None | Some("default") => Ok(Scaling::None),
            Some("linear") => Ok(Scaling::Linear { factor: needed(self.factor, "factor")? }),
            Some("llama3") => Ok(Scaling::Llama3 {
                factor: needed(self.factor, "factor")?,
                low: needed(self.low_freq_factor, "low_freq_factor")?,
                high: needed(self.high_freq_factor, "high_freq_factor")?,
                context: self
                    .original_max_position_embeddings
                    .ok_or("its rotary frequencies have no original_max_position_embeddings")?,
            }),
            Some(other) => Err(format!("rope_type is '{other}', expected default, linear or llama3")),
        }
    }
}

impl LlamaFile {
    fn config(self, kind: &str) -> Result<LlamaConfig, String> {
        if let Some(other) = self.hidden_act.as_ref().filter(|name| *name != "silu") {
            return Err(format!("hidden_act is '{other}', expected silu"));
        }
        let (window, unlimited) = self.windows(kind)?;
        let rope = self.rope_parameters.or(self.rope_scaling).unwrap_or_default();
        let (heads, width, layers) = (self.num_attention_heads, self.hidden_size, self.num_hidden_layers);
        let sizes = LlamaConfig::new(self.vocab_size, self.max_position_embeddings, [layers, heads, width]);
        let attention_bias = self.attention_bias.unwrap_or(false);
        Ok(LlamaConfig {
            kv_heads: self.num_key_value_heads.unwrap_or(heads),
            depth: self.head_dim.unwrap_or(sizes.depth),
            hidden: self.intermediate_size,
            epsilon: self.rms_norm_eps.unwrap_or(1e-6),
            theta: rope.rope_theta.or(self.rope_theta).unwrap_or(sizes.theta),
            scaling: rope.scaling()?,
            tied: self.tie_word_embeddings.unwrap_or(false),
            qkv_bias: kind == "qwen2" || attention_bias,
            output_bias: kind != "qwen2" && attention_bias,
            hidden_bias: self.mlp_bias.unwrap_or(false),
            head_norms: kind == "qwen3",
            window,
            unlimited,
            ..sizes
        })
    }

    /// The window of the model, and the number of the first blocks that have none.
    fn windows(&self, kind: &str) -> Result<(Option<usize>, usize), String> {
        // Mistral's blocks all have the window, those of Llama none, and those of Qwen if the file says so.
        let used = kind == "mistral" || (kind != "llama" && self.use_sliding_window == Some(true));
        let Some(window) = self.sliding_window.filter(|_| used) else { return Ok((None, 0)) };
        let Some(types) = &self.layer_types else {
            return Ok((Some(window), if kind == "mistral" { 0 } else { self.max_window_layers.unwrap_or(0) }));
        };
        let unlimited = types.iter().take_while(|kind| *kind == "full_attention").count();
        match types[unlimited..].iter().find(|kind| *kind != "sliding_attention") {
            Some(other) => Err(format!(
                "layer_types has '{other}' behind block {unlimited}, expected full_attention first and sliding_attention then"
            )),
            None => Ok((Some(window), unlimited)),
        }
    }
}
