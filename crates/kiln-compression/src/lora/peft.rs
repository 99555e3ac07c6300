//! Adapters on disk, in the files that peft reads and writes.
// I inputs, O outputs, R rank

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::{fs, io};

use burn::tensor::{DType, TensorData};
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};

use super::peft_config::{Config, none};
use super::{AdapterKind, Adapters, Factors};
use crate::Error;
use crate::files::{self, Stored, views};

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";
const PREFIX: &str = "base_model.model.";
const A: &str = ".lora_A.weight";
const B: &str = ".lora_B.weight";
const MAGNITUDE: &str = ".lora_magnitude_vector";
/// The entry of the weights' metadata with the [`checksum`]. Files of peft have none.
const CHECKSUM: &str = "crc32";
/// The entry with the configuration that belongs to the weights, as in its file.
const OWN_CONFIG: &str = "adapter_config";
/// The entry with the CRC-32 of the file of the configuration that was there when the weights were written. Where it is still there, the
/// save ended between its two files.
const REPLACED_CONFIG: &str = "replaced_adapter_config_crc32";

impl Adapters {
    /// Writes `adapter_model.safetensors` and `adapter_config.json` to `directory`, as peft does, so that peft's
    /// `PeftModel.from_pretrained` loads them. The weights carry a CRC-32 of themselves and the configuration, so that [`load`](Self::load)
    /// refuses damaged files and two files that do not belong together.
    ///
    /// A save that fails or is interrupted leaves either the adapters of before or these: the weights, which are replaced first and as a
    /// whole, also carry their configuration. peft reads the other file only. Between the two files it has the old configuration, which
    /// is the same unless rank, alpha or targets have changed; the next save writes it again.
    ///
    /// `layer` turns the path of a parameter into the name of peft's layer: `h.0.attn.c_attn.weight` into
    /// `transformer.h.0.attn.c_attn`. The written configuration says `fan_in_fan_out`, which peft ignores for `nn.Linear` (with a
    /// warning) and needs for GPT-2's `Conv1D`.
    ///
    /// # Errors
    /// [`Error::Adapter`] unless all adapters have one rank, one scale and one kind; [`Error::Save`] when a file cannot be written or two
    /// layers get the same name.
    pub fn save(&self, directory: impl AsRef<Path>, layer: impl Fn(&str) -> String) -> Result<(), Error> {
        self.save_in_steps(directory.as_ref(), layer, || Ok(()))
    }

    /// Saves, and calls `step` before each step that may fail.
    fn save_in_steps(
        &self,
        directory: &Path,
        layer: impl Fn(&str) -> String,
        mut step: impl FnMut() -> io::Result<()>,
    ) -> Result<(), Error> {
        let AdapterKind { rank, alpha, dora } = self.kind()?;
        let mut tensors = BTreeMap::new();
        let mut target_modules = BTreeSet::new();
        for (path, factors) in self.iter() {
            let name = layer(path);
            let [inputs, rank, outputs] = factors.sizes();
            let mut parts =
                vec![(A, vec![rank, inputs], transposed(&factors.a)), (B, vec![outputs, rank], transposed(&factors.b))];
            parts.extend(factors.magnitude.iter().map(|data| (MAGNITUDE, vec![outputs], numbers(data))));
            for (suffix, shape, values) in parts {
                tensors.insert(format!("{PREFIX}{name}{suffix}"), Stored::f32(shape, &values));
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
        let (weights, config_path) = (directory.join(WEIGHTS), directory.join(CONFIG));
        let tensors = views(&tensors).map_err(|reason| save(&weights, reason))?;
        let text = serde_json::to_string_pretty(&config).map_err(|e| save(&config_path, e.to_string()))?;
        let mut metadata = HashMap::from([("format".into(), "pt".into()), (OWN_CONFIG.into(), text.clone())]);
        match fs::read(&config_path) {
            Ok(replaced) => drop(metadata.insert(REPLACED_CONFIG.into(), hex(crc32fast::hash(&replaced)))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(save(&config_path, e.to_string())),
        }
        let parts = tensors.iter().map(|(name, view)| (*name, view.data()));
        metadata.insert(CHECKSUM.into(), hex(checksum(alpha, &metadata, parts)));
        let bytes = serialize(tensors, Some(metadata)).map_err(|e| save(&weights, e.to_string()))?;

        fs::create_dir_all(directory).map_err(|e| save(directory, e.to_string()))?;
        // The weights come first: they carry the configuration.
        let mut staged = Vec::new();
        for (path, bytes) in [(weights, &bytes[..]), (config_path, text.as_bytes())] {
            let file = step().and_then(|()| files::stage(&path, bytes)).map_err(|e| save(&path, e.to_string()))?;
            staged.push((path, file));
        }
        for (path, file) in staged {
            step().and_then(|()| files::put(file, &path)).map_err(|e| save(&path, e.to_string()))?;
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
        let bytes = fs::read(&weights_path).map_err(|e| load(&weights_path, e.to_string()))?;
        let metadata = metadata(&bytes).map_err(|reason| load(&weights_path, reason))?;
        let is_replaced = metadata.get(REPLACED_CONFIG) == Some(&hex(crc32fast::hash(&text)));
        let text = match metadata.get(OWN_CONFIG).filter(|_| is_replaced) {
            Some(own) => own.as_bytes(),
            None => &text,
        };
        let config: Config = serde_json::from_slice(text).map_err(|e| load(&config_path, e.to_string()))?;
        config.check().map_err(|reason| load(&config_path, reason))?;
        factors(&bytes, &metadata, &config, parameter).map_err(|reason| load(&weights_path, reason))
    }
}

/// The metadata in the bytes of a safetensors file.
fn metadata(bytes: &[u8]) -> Result<HashMap<String, String>, String> {
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(|e| e.to_string())?;
    Ok(header.metadata().clone().unwrap_or_default())
}

/// The adapters in the bytes of a safetensors file.
fn factors(
    bytes: &[u8],
    metadata: &HashMap<String, String>,
    config: &Config,
    parameter: impl Fn(&str) -> String,
) -> Result<Adapters, String> {
    let file = SafeTensors::deserialize(bytes).map_err(|e| e.to_string())?;
    let mut tensors = file.tensors();
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    let crc = checksum(config.lora_alpha, metadata, tensors.iter().map(|(name, view)| (name.as_str(), view.data())));
    if metadata.get(CHECKSUM).is_some_and(|stored| *stored != hex(crc)) {
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
        false => Ok(Adapters { by_path: by_path.into() }),
    }
}

/// The CRC-32 of alpha, of what the metadata say of configurations, and of names and values in the order of the names.
fn checksum<'a>(
    alpha: f64,
    metadata: &HashMap<String, String>,
    tensors: impl Iterator<Item = (&'a str, &'a [u8])>,
) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&alpha.to_le_bytes());
    for entry in [OWN_CONFIG, REPLACED_CONFIG] {
        crc.update(metadata.get(entry).map_or("", String::as_str).as_bytes());
    }
    for (name, values) in tensors {
        crc.update(name.as_bytes());
        crc.update(values);
    }
    crc.finalize()
}

fn hex(crc: u32) -> String {
    format!("{crc:08x}")
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Adapters of one layer that differ in all that a configuration says.
    fn adapters(rank: usize, scale: f32) -> Adapters {
        let matrix = |shape: [usize; 2]| TensorData::new(vec![scale; shape[0] * shape[1]], shape);
        let magnitude = (rank == 2).then(|| TensorData::new(vec![scale; 5], [5]));
        let factors = Factors { a: matrix([3, rank]), b: matrix([rank, 5]), magnitude, scale };
        Adapters { by_path: BTreeMap::from([("up.weight".to_owned(), factors)]).into() }
    }

    fn load(directory: &Path) -> Result<Adapters, Error> {
        Adapters::load(directory, |layer| format!("{layer}.weight"))
    }

    /// Saves, and ends before the step of this number. The folder is left as by an error, or copied to `killed` as it is when the
    /// process ends there.
    fn save_until(adapters: &Adapters, directory: &Path, end: usize, killed: Option<&Path>) -> Result<(), Error> {
        let mut steps = 0;
        let layer = |path: &str| path.trim_end_matches(".weight").to_owned();
        adapters.save_in_steps(directory, layer, || {
            steps += 1;
            if steps <= end {
                return Ok(());
            }
            if let Some(killed) = killed {
                for file in fs::read_dir(directory)? {
                    let file = file?;
                    fs::copy(file.path(), killed.join(file.file_name()))?;
                }
            }
            Err(io::Error::other("injected"))
        })
    }

    #[test]
    fn a_save_that_fails_anywhere_leaves_one_of_the_two_adapters() {
        let (old, new, last) = (adapters(1, 0.5), adapters(2, 3.0), adapters(4, 8.0));
        let mut ends = 0;
        for end in 0.. {
            let [folder, killed] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
            save_until(&old, folder.path(), usize::MAX, None).unwrap();
            let result = save_until(&new, folder.path(), end, Some(killed.path()));
            if result.is_ok() {
                break;
            }
            ends += 1;
            assert!(matches!(result, Err(Error::Save { .. })), "{result:?}");
            let expected = if end < 3 { &old } else { &new };
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "no other file stays");
            for folder in [folder.path(), killed.path()] {
                assert_eq!(load(folder).as_ref(), Ok(expected), "ended before step {end}");
                // A save after it may end anywhere as well.
                for second in 0..4 {
                    let again = tempfile::tempdir().unwrap();
                    for name in [CONFIG, WEIGHTS] {
                        fs::copy(folder.join(name), again.path().join(name)).unwrap();
                    }
                    save_until(&last, again.path(), second, None).unwrap_err();
                    assert_eq!(load(again.path()).as_ref(), Ok(if second < 3 { expected } else { &last }));
                    save_until(&old, again.path(), usize::MAX, None).unwrap();
                    assert_eq!(load(again.path()).as_ref(), Ok(&old));
                }
            }
        }
        assert_eq!(ends, 4, "two files are staged and two replaced");
    }

    #[test]
    fn a_configuration_that_cannot_be_replaced_ends_a_save_before_the_weights_are() {
        let folder = tempfile::tempdir().unwrap();
        save_until(&adapters(1, 0.5), folder.path(), usize::MAX, None).unwrap();
        let weights = fs::read(folder.path().join(WEIGHTS)).unwrap();
        fs::remove_file(folder.path().join(CONFIG)).unwrap();
        fs::create_dir(folder.path().join(CONFIG)).unwrap();
        assert!(matches!(save_until(&adapters(2, 3.0), folder.path(), usize::MAX, None), Err(Error::Save { .. })));
        assert_eq!(fs::read(folder.path().join(WEIGHTS)).unwrap(), weights);
    }
}
