//! Adapters on disk, in the files that peft reads and writes.
// I inputs, O outputs, R rank

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::Path;

use burn::tensor::{DType, TensorData};
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use serde::{Deserialize, Serialize};

use super::adapters::{Adapters, Factors};
use crate::Error;
use crate::atomic;

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";
const PREFIX: &str = "base_model.model.";
const A: &str = ".lora_A.weight";
const B: &str = ".lora_B.weight";
const MAGNITUDE: &str = ".lora_magnitude_vector";
/// The entry of the weights' metadata with the [`checksum`]. Files of peft have none.
const CHECKSUM: &str = "crc32";

/// peft's `LoraConfig`, as far as it has meaning here.
#[derive(Serialize, Deserialize)]
struct Config {
    peft_type: String,
    r: usize,
    lora_alpha: f64,
    #[serde(default)]
    use_rslora: bool,
    #[serde(default)]
    use_dora: bool,
    #[serde(default)]
    fan_in_fan_out: bool,
    #[serde(default = "none")]
    bias: String,
    #[serde(default, deserialize_with = "any_targets")]
    target_modules: BTreeSet<String>,
    #[serde(default)]
    inference_mode: bool,
    #[serde(default)]
    base_model_name_or_path: Option<String>,
    #[serde(default)]
    task_type: Option<String>,
    #[serde(default, skip_serializing)]
    rank_pattern: Option<HashMap<String, serde_json::Value>>,
    #[serde(default, skip_serializing)]
    alpha_pattern: Option<HashMap<String, serde_json::Value>>,
}

fn none() -> String {
    "none".into()
}

/// The targets are not read: the names of the weights say more. peft writes a list, a regular expression or nothing.
fn any_targets<'de, D: serde::Deserializer<'de>>(from: D) -> Result<BTreeSet<String>, D::Error> {
    serde::de::IgnoredAny::deserialize(from).map(|_| BTreeSet::new())
}

impl Config {
    fn scale(&self) -> f64 {
        let rank = self.r as f64;
        self.lora_alpha / if self.use_rslora { rank.sqrt() } else { rank }
    }

    fn check(&self) -> Result<(), String> {
        let pattern = |pattern: &Option<HashMap<_, _>>| pattern.as_ref().is_some_and(|p| !p.is_empty());
        if self.peft_type != "LORA" {
            return Err(format!("peft_type is '{}', expected 'LORA'", self.peft_type));
        }
        if self.r == 0 || !self.lora_alpha.is_finite() {
            return Err(format!("r is {} and lora_alpha {}", self.r, self.lora_alpha));
        }
        if self.bias != "none" {
            return Err(format!("bias is '{}', expected 'none'", self.bias));
        }
        if pattern(&self.rank_pattern) || pattern(&self.alpha_pattern) {
            return Err("rank_pattern and alpha_pattern are set, expected one rank and one alpha".into());
        }
        Ok(())
    }
}

impl Adapters {
    /// Writes `adapter_model.safetensors` and `adapter_config.json` to `directory`, as peft does, so that peft's
    /// `PeftModel.from_pretrained` loads them. Each file is replaced as a whole. The weights carry a CRC-32 of themselves and the configuration, so
    /// that [`load`](Self::load) refuses damaged files and two files that do not belong together.
    ///
    /// `layer` turns the path of a parameter into the name of peft's layer: `h.0.attn.c_attn.weight` into
    /// `transformer.h.0.attn.c_attn`. The written configuration says `fan_in_fan_out`, which peft ignores for `nn.Linear` (with a
    /// warning) and needs for GPT-2's `Conv1D`.
    ///
    /// # Errors
    /// [`Error::Adapter`] unless all adapters have one rank, one scale and one kind; [`Error::Save`] when a file cannot be written or two
    /// layers get the same name.
    pub fn save(&self, directory: impl AsRef<Path>, layer: impl Fn(&str) -> String) -> Result<(), Error> {
        let directory = directory.as_ref();
        let Some((first_path, first)) = self.iter().next() else {
            return Err(Error::Adapter { path: String::new(), reason: "there are none to save".into() });
        };
        let ([_, rank, _], dora) = (first.sizes(), first.magnitude.is_some());
        let alpha = f64::from(first.scale) * rank as f64;
        let mut tensors = BTreeMap::new();
        let mut target_modules = BTreeSet::new();
        for (path, factors) in self.iter() {
            if factors.sizes()[1] != rank || factors.scale != first.scale || factors.magnitude.is_some() != dora {
                let reason = format!("it has another rank, scale or kind than '{first_path}'");
                return Err(Error::Adapter { path: path.to_owned(), reason });
            }
            let name = layer(path);
            let [inputs, rank, outputs] = factors.sizes();
            let mut parts =
                vec![(A, vec![rank, inputs], transposed(&factors.a)), (B, vec![outputs, rank], transposed(&factors.b))];
            parts.extend(factors.magnitude.iter().map(|data| (MAGNITUDE, vec![outputs], numbers(data))));
            for (suffix, shape, values) in parts {
                tensors.insert(format!("{PREFIX}{name}{suffix}"), (shape, values));
            }
            if !target_modules.insert(name.clone()) {
                let reason = format!("two layers are called '{name}'");
                return Err(Error::Save { path: directory.join(WEIGHTS), reason });
            }
        }
        let config = Config {
            peft_type: "LORA".into(),
            r: rank,
            lora_alpha: alpha,
            use_rslora: false,
            use_dora: dora,
            fan_in_fan_out: true,
            bias: none(),
            target_modules,
            inference_mode: true,
            base_model_name_or_path: None,
            task_type: None,
            rank_pattern: None,
            alpha_pattern: None,
        };
        let save = |path: &Path, reason: String| Error::Save { path: path.to_owned(), reason };
        let views: Vec<(&String, Result<TensorView<'_>, _>)> = tensors
            .iter()
            .map(|(name, (shape, values))| {
                (name, TensorView::new(Dtype::F32, shape.clone(), bytemuck::cast_slice(values)))
            })
            .collect();
        let weights = directory.join(WEIGHTS);
        let mut checked = Vec::with_capacity(views.len());
        for (name, view) in views {
            checked.push((name, view.map_err(|e| save(&weights, e.to_string()))?));
        }
        let crc = checksum(alpha, checked.iter().map(|(name, view)| (name.as_str(), view.data())));
        let metadata = HashMap::from([("format".into(), "pt".into()), (CHECKSUM.into(), format!("{crc:08x}"))]);
        let bytes = serialize(checked, Some(metadata)).map_err(|e| save(&weights, e.to_string()))?;
        let text = serde_json::to_string_pretty(&config).map_err(|e| save(directory, e.to_string()))?;
        fs::create_dir_all(directory).map_err(|e| save(directory, e.to_string()))?;
        for (path, bytes) in [(weights, &bytes[..]), (directory.join(CONFIG), text.as_bytes())] {
            atomic::write(&path, bytes).map_err(|e| save(&path, e.to_string()))?;
        }
        Ok(())
    }

    /// Reads `adapter_model.safetensors` and `adapter_config.json` of `directory`, written by [`save`](Self::save) or by peft.
    ///
    /// `parameter` turns the name of peft's layer into the path of a parameter: `transformer.h.0.attn.c_attn` into
    /// `h.0.attn.c_attn.weight`. Values in 16 bits become f32.
    ///
    /// # Errors
    /// [`Error::Load`] for a file that cannot be read, is damaged, or does not fit the other; for tensors of other names and shapes than
    /// those of adapters of linear layers; for biases and for ranks that differ between layers.
    pub fn load(directory: impl AsRef<Path>, parameter: impl Fn(&str) -> String) -> Result<Self, Error> {
        let directory = directory.as_ref();
        let (config_path, weights_path) = (directory.join(CONFIG), directory.join(WEIGHTS));
        let load = |path: &Path, reason: String| Error::Load { path: path.to_owned(), reason };
        let text = fs::read(&config_path).map_err(|e| load(&config_path, e.to_string()))?;
        let config: Config = serde_json::from_slice(&text).map_err(|e| load(&config_path, e.to_string()))?;
        config.check().map_err(|reason| load(&config_path, reason))?;
        let bytes = fs::read(&weights_path).map_err(|e| load(&weights_path, e.to_string()))?;
        factors(&bytes, &config, parameter).map_err(|reason| load(&weights_path, reason))
    }
}

/// The adapters in the bytes of a safetensors file.
fn factors(bytes: &[u8], config: &Config, parameter: impl Fn(&str) -> String) -> Result<Adapters, String> {
    let text = |e: safetensors::SafeTensorError| e.to_string();
    let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(text)?;
    let stored = metadata.metadata().as_ref().and_then(|entries| entries.get(CHECKSUM));
    let file = SafeTensors::deserialize(bytes).map_err(text)?;
    let mut tensors = file.tensors();
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    let crc = checksum(config.lora_alpha, tensors.iter().map(|(name, view)| (name.as_str(), view.data())));
    if stored.is_some_and(|stored| *stored != format!("{crc:08x}")) {
        return Err(format!("the checksum is wrong: it is damaged, or it does not belong to {CONFIG}"));
    }
    let mut layers: BTreeMap<String, [Option<TensorView<'_>>; 3]> = BTreeMap::new();
    for (name, tensor) in tensors {
        let part = [A, B, MAGNITUDE].iter().position(|suffix| name.ends_with(suffix));
        let Some((part, layer)) = part.and_then(|part| {
            let layer = name.strip_prefix(PREFIX)?.strip_suffix([A, B, MAGNITUDE][part])?;
            Some((part, layer.to_owned()))
        }) else {
            return Err(format!("'{name}' is no part of an adapter of a linear layer"));
        };
        layers.entry(layer).or_default()[part] = Some(tensor);
    }
    let mut by_path = BTreeMap::new();
    for (layer, [a, b, magnitude]) in layers {
        let (Some(a), Some(b)) = (a, b) else { return Err(format!("'{layer}' lacks a factor")) };
        if magnitude.is_some() != config.use_dora {
            return Err(format!("'{layer}' disagrees with use_dora = {}", config.use_dora));
        }
        let ([r, inputs], [outputs, also_r]) = (matrix(&layer, &a)?, matrix(&layer, &b)?);
        if [r, also_r] != [config.r; 2] {
            return Err(format!("the ranks of the factors of '{layer}' are {r} and {also_r}, expected {}", config.r));
        }
        let magnitude = match magnitude {
            Some(tensor) if tensor.shape() != [outputs] => {
                return Err(format!("the magnitude of '{layer}' has shape {:?}, expected [{outputs}]", tensor.shape()));
            }
            Some(tensor) => Some(TensorData::new(floats(&tensor)?, [outputs])),
            None => None,
        };
        let factors = Factors {
            a: TensorData::new(transpose(&floats(&a)?, inputs), [inputs, r]),
            b: TensorData::new(transpose(&floats(&b)?, r), [r, outputs]),
            magnitude,
            scale: config.scale() as f32,
        };
        let path = parameter(&layer);
        if by_path.insert(path.clone(), factors).is_some() {
            return Err(format!("two layers are adapters of '{path}'"));
        }
    }
    match by_path.is_empty() {
        true => Err("it has no adapters".into()),
        false => Ok(Adapters { by_path }),
    }
}

/// The CRC-32 of alpha, and of names and values in the order of the names.
fn checksum<'a>(alpha: f64, tensors: impl Iterator<Item = (&'a str, &'a [u8])>) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&alpha.to_le_bytes());
    for (name, values) in tensors {
        crc.update(name.as_bytes());
        crc.update(values);
    }
    crc.finalize()
}

fn matrix(layer: &str, tensor: &TensorView<'_>) -> Result<[usize; 2], String> {
    tensor.shape().try_into().map_err(|_| format!("a factor of '{layer}' has shape {:?}", tensor.shape()))
}

fn floats(tensor: &TensorView<'_>) -> Result<Vec<f32>, String> {
    let dtype = match tensor.dtype() {
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        other => return Err(format!("the dtype is {other:?}, expected F32, F16 or BF16")),
    };
    let count: usize = tensor.shape().iter().product();
    Ok(numbers(&TensorData::from_bytes_vec(tensor.data().to_vec(), [count], dtype)))
}

fn numbers(data: &TensorData) -> Vec<f32> {
    data.iter::<f32>().collect()
}

/// The values of `[rows, columns]` as those of `[columns, rows]`.
fn transposed(data: &TensorData) -> Vec<f32> {
    transpose(&numbers(data), data.shape()[1])
}

fn transpose(values: &[f32], columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|column| values.iter().skip(column).step_by(columns)).copied().collect()
}
