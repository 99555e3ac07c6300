//! Configurations as the `config.json` of Hugging Face's folders has them.

use std::path::Path;

use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::config::DecoderConfig;
use crate::Error;
use crate::config::invalid;
use crate::gpt::GptConfig;
use crate::llama::{LlamaConfig, Scaling};

/// The file of the configuration in a folder.
const FILE: &str = "config.json";

/// The window of Mistral and Qwen where a file does not have it.
const WINDOW: usize = 4096;

/// The values of `model_type` that are known.
const TYPES: &str = "gpt2, llama, mistral, qwen2, qwen3";

impl DecoderConfig {
    /// The configuration in `config.json` of the folder of a Hugging Face model, whose `model_type` is gpt2, llama, mistral, qwen2 or qwen3.
    ///
    /// # Errors
    /// [`Error::Load`] when the file cannot be read, is of another kind of model, or has a setting that no [`Decoder`](crate::Decoder) has: the reason names it
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

    /// The content of a Hugging Face folder's `config.json`, without special tokens.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for a model whose parts no `model_type` has together, such as a window and biases.
    pub fn to_hugging_face(&self) -> Result<Value, Error> {
        let fields = match self {
            Self::Gpt(config) => of_gpt(config),
            Self::Llama(config) => of_llama(config),
        };
        let same = match (self, Self::parsed(&fields.to_string())) {
            // What is dropped, and how the model computes, is not in the file, or not read from it.
            (Self::Gpt(_), Ok(Self::Gpt(_))) => true,
            (Self::Llama(own), Ok(Self::Llama(read))) => *own == LlamaConfig { lean: own.lean, ..read },
            _ => false,
        };
        match same {
            true => Ok(fields),
            false => Err(invalid("model", fields["model_type"].clone(), format!("the parts of one of {TYPES}"))),
        }
    }
}

/// transformers' `GPT2Config`.
fn of_gpt(config: &GptConfig) -> Value {
    json!({
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": config.vocab,
        "n_positions": config.context,
        "n_embd": config.width,
        "n_layer": config.layers,
        "n_head": config.heads,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": 0.0,
        "tie_word_embeddings": true,
        "torch_dtype": "float32",
    })
}

/// The configuration of the model of the family in transformers that has the same parts.
fn of_llama(config: &LlamaConfig) -> Value {
    let (kind, class) = match (config.head_norms, config.qkv_bias && !config.output_bias, config.window) {
        (true, ..) => ("qwen3", "Qwen3ForCausalLM"),
        (false, true, _) => ("qwen2", "Qwen2ForCausalLM"),
        (false, false, Some(_)) => ("mistral", "MistralForCausalLM"),
        (false, false, None) => ("llama", "LlamaForCausalLM"),
    };
    let rope = match config.scaling {
        Scaling::None => json!({ "rope_type": "default", "rope_theta": config.theta }),
        Scaling::Linear { factor } => json!({ "rope_type": "linear", "rope_theta": config.theta, "factor": factor }),
        Scaling::Llama3 { factor, low, high, context } => json!({
            "rope_type": "llama3",
            "rope_theta": config.theta,
            "factor": factor,
            "low_freq_factor": low,
            "high_freq_factor": high,
            "original_max_position_embeddings": context,
        }),
    };
    let mut fields = json!({
        "architectures": [class],
        "model_type": kind,
        "vocab_size": config.vocab,
        "hidden_size": config.width,
        "intermediate_size": config.hidden,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.depth,
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.epsilon,
        "hidden_act": "silu",
        "rope_theta": config.theta,
        "rope_parameters": rope,
        "attention_bias": config.output_bias,
        "mlp_bias": config.hidden_bias,
        "sliding_window": config.window,
        "tie_word_embeddings": config.tied,
        "torch_dtype": "float32",
    });
    if let (Value::Object(fields), "qwen2" | "qwen3") = (&mut fields, kind) {
        let of = |block| if config.window_of(block).is_some() { "sliding_attention" } else { "full_attention" };
        let types: Vec<&str> = (0..config.layers).map(of).collect();
        fields.insert("use_sliding_window".into(), config.window.is_some().into());
        fields.insert("max_window_layers".into(), config.unlimited.into());
        fields.insert("layer_types".into(), types.into());
    }
    fields
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
    scale_attn_weights: Option<bool>,
    scale_attn_by_inverse_layer_idx: Option<bool>,
}

impl Gpt2File {
    fn config(self) -> Result<GptConfig, String> {
        let Self { vocab_size, n_positions, n_layer, n_head, n_embd, .. } = self;
        if let Some(other) = self.activation_function.filter(|name| name != "gelu_new") {
            return Err(format!("activation_function is '{other}', expected gelu_new"));
        }
        let four = n_embd.saturating_mul(4);
        if let Some(inner) = self.n_inner.filter(|inner| *inner != four) {
            return Err(format!("n_inner is {inner}, expected four times n_embd, {four}"));
        }
        if let Some(epsilon) = self.layer_norm_epsilon.filter(|epsilon| (*epsilon - 1e-5).abs() > 1e-12) {
            return Err(format!("layer_norm_epsilon is {epsilon}, expected 1e-5"));
        }
        for (name, value, expected) in [
            ("tie_word_embeddings", self.tie_word_embeddings, true),
            ("scale_attn_weights", self.scale_attn_weights, true),
            ("scale_attn_by_inverse_layer_idx", self.scale_attn_by_inverse_layer_idx, false),
        ] {
            if value == Some(!expected) {
                return Err(format!("{name} is {}, expected {expected}", !expected));
            }
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
    /// `None` where the file does not have it, and null where it says that there is none.
    #[serde(default, deserialize_with = "present")]
    sliding_window: Option<Option<usize>>,
    use_sliding_window: Option<bool>,
    max_window_layers: Option<usize>,
    layer_types: Option<Vec<String>>,
}

/// Reads a field that may be null.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<usize>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

#[derive(Default, Deserialize)]
struct Rope {
    rope_theta: Option<f64>,
    rope_type: Option<String>,
    /// The older name of `rope_type`. Some files have both.
    r#type: Option<String>,
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
        match self.rope_type.as_ref().or(self.r#type.as_ref()).map(String::as_str) {
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
        let rope = self.rope_scaling.or(self.rope_parameters).unwrap_or_default();
        let (heads, width, layers) = (self.num_attention_heads, self.hidden_size, self.num_hidden_layers);
        let sizes = LlamaConfig::new(self.vocab_size, self.max_position_embeddings, [layers, heads, width]);
        // What other models of the family do not read has no effect on them.
        let attention_bias = matches!(kind, "llama" | "qwen3") && self.attention_bias == Some(true);
        // transformers' defaults.
        let [kv_heads, depth] = match kind {
            "mistral" => [8, sizes.depth],
            "qwen2" => [32, sizes.depth],
            "qwen3" => [32, 128],
            _ => [heads, sizes.depth],
        };
        Ok(LlamaConfig {
            kv_heads: self.num_key_value_heads.unwrap_or(kv_heads),
            depth: self.head_dim.unwrap_or(depth),
            hidden: self.intermediate_size,
            epsilon: self.rms_norm_eps.unwrap_or(1e-6),
            theta: rope.rope_theta.or(self.rope_theta).unwrap_or(sizes.theta),
            scaling: rope.scaling()?,
            tied: self.tie_word_embeddings.unwrap_or(false),
            qkv_bias: kind == "qwen2" || attention_bias,
            output_bias: attention_bias,
            hidden_bias: kind == "llama" && self.mlp_bias == Some(true),
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
        let Some(window) = self.sliding_window.unwrap_or(Some(WINDOW)).filter(|_| used) else { return Ok((None, 0)) };
        let Some(types) = &self.layer_types else {
            return Ok((Some(window), if kind == "mistral" { 0 } else { self.max_window_layers.unwrap_or(28) }));
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
