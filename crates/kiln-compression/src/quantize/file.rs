//! Quantised models in files.

use super::blocks::Blocks;
use super::codes;
use super::model::QuantizedModel;
use super::weights::QuantizedWeight;
use crate::Error;
use crate::files::{self, Stored, views};
use crate::parameters::{self, Item, walk};
use burn::module::Module;
use burn::tensor::{DType, TensorData};
use half::f16;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

/// The version of the format that is written, and the only one that is read.
const VERSION: u32 = 1;

/// The key of the description in the file's metadata.
const KEY: &str = "kiln_quantized";

/// The description in the metadata, as JSON.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    version: u32,
    /// CRC-32 of the weights' descriptions and of names, shapes and bytes of the tensors in the order of their names.
    crc32: u32,
    weights: BTreeMap<String, Entry>,
}

/// One quantised weight.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    bits: u8,
    shape: Vec<usize>,
    blocks: Blocks,
}

impl QuantizedModel {
    /// Writes `model` to a file of safetensors, with its quantised weights as packed codes and scales.
    ///
    /// A weight `fc.weight` is stored as `fc.weight.codes` and `fc.weight.scales`. Codes of 8 bits are I8; those of fewer bits are a
    /// stream of bits in U8, so that 4 bits are two codes a byte, the first one in the lower half. Scales are F32, or F16 if they were
    /// rounded, of shape `[groups, 1, columns]`. All other parameters and running statistics keep their names and dtypes. The metadata
    /// hold, under `kiln_quantized`, a JSON object with the format's version, a CRC-32, and bits, shape and blocks of each weight. The
    /// file is written under another name and then renamed.
    ///
    /// ```
    /// use burn::nn::LinearConfig;
    /// use burn::tensor::Device;
    /// use kiln_compression::{Quantization, QuantizedModel, quantize};
    ///
    /// let directory = tempfile::tempdir()?;
    /// let path = directory.path().join("model.safetensors");
    /// let config = LinearConfig::new(32, 10);
    /// let model = config.init(&Device::flex());
    /// let quantized = quantize(&model, &Quantization::bits(4))?;
    /// quantized.save(&model, &path)?;
    ///
    /// let (model, again) = QuantizedModel::load(&path, config.init(&Device::flex()))?;
    /// assert_eq!(again, quantized);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Save`] if the file cannot be written; [`Error::UnknownParameter`] and [`Error::ShapeMismatch`] if the weights are not
    /// those of the model; [`Error::Reparameterized`] if a parameter has a reparameterization; [`Error::Read`] if a device cannot give
    /// values.
    pub fn save<M: Module>(&self, model: &M, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        self.check(model)?;
        // Running statistics take in their last update only when they are asked to.
        drop(model.valid());
        let rest = plain_tensors(model, |path| !self.weights().contains_key(path))?;

        let mut tensors = BTreeMap::new();
        let mut entries = BTreeMap::new();
        for (name, weight) in self.weights() {
            let (bits, shape, blocks) = (weight.bits(), weight.shape().to_vec(), weight.blocks());
            tensors.insert(format!("{name}.codes"), codes_of(weight));
            tensors.insert(format!("{name}.scales"), scales_of(weight));
            entries.insert(name.clone(), Entry { bits, shape, blocks });
        }
        let save = |reason: String| Error::Save { path: path.to_owned(), reason };
        for Plain { path: name, shape, data, .. } in rest {
            let Some(data) = data else { continue };
            let dtype =
                stored_dtype(data.dtype()).ok_or_else(|| save(format!("'{name}' has the dtype {:?}", data.dtype())))?;
            let bytes = match dtype {
                Dtype::BOOL => data.iter::<bool>().map(u8::from).collect(),
                _ => data.as_bytes().to_vec(),
            };
            tensors.insert(name, Stored { dtype, shape, bytes });
        }

        let views = views(&tensors).map_err(save)?;
        let crc32 = checksum(&entries, views.iter().map(|(name, view)| (*name, view))).map_err(save)?;
        let description = Description { version: VERSION, crc32, weights: entries };
        let description = serde_json::to_string(&description).map_err(|error| save(error.to_string()))?;
        let metadata = HashMap::from([(KEY.to_owned(), description)]);
        let bytes = safetensors::serialize(views, Some(metadata)).map_err(|error| save(error.to_string()))?;
        files::write(path, &bytes).map_err(|error| save(error.to_string()))
    }

    /// Reads a file that [`save`](Self::save) wrote: `model` with the values of the file, the quantised weights in f32, and these weights
    /// as codes. [`apply_packed`](Self::apply_packed) of the second on the first gives a model that holds codes.
    ///
    /// # Errors
    ///
    /// [`Error::Load`] if the file cannot be read, is not such a file, has another version or is damaged; [`Error::UnknownParameter`],
    /// [`Error::ShapeMismatch`] and [`Error::Reparameterized`] if it is not of this model.
    pub fn load<M: Module>(path: impl AsRef<Path>, model: M) -> Result<(M, Self), Error> {
        let path = path.as_ref();
        let load = |reason: String| Error::Load { path: path.to_owned(), reason };
        let bytes = std::fs::read(path).map_err(|error| load(error.to_string()))?;
        let (quantized, mut rest) = read(&bytes).map_err(load)?;
        quantized.check(&model)?;

        let slots = plain_tensors(&model, |_| false)?;
        let known: BTreeSet<&str> = slots.iter().map(|slot| slot.path.as_str()).collect();
        if let Some(name) = rest.keys().find(|name| !known.contains(name.as_str())) {
            return Err(Error::unknown(name, known));
        }
        let mut values = BTreeMap::new();
        for slot in slots {
            let data = match quantized.weights().get(&slot.path) {
                Some(weight) => TensorData::new(weight.dequantize(), slot.shape),
                None => {
                    let stored =
                        rest.remove(&slot.path).ok_or_else(|| load(format!("it has no tensor '{}'", slot.path)))?;
                    if stored.shape != slot.shape {
                        let (found, expected) = (stored.shape, slot.shape);
                        return Err(Error::ShapeMismatch { path: slot.path, found, expected });
                    }
                    let (dtype, wanted) = (stored.dtype, slot.kind);
                    data(stored, wanted)
                        .ok_or_else(|| load(format!("'{}' has the dtype {dtype:?}, expected {wanted:?}", slot.path)))?
                }
            };
            values.insert(slot.path, data);
        }
        Ok((parameters::replace(model, |path| values.remove(path)), quantized))
    }
}

/// A tensor of a module that is stored as it is: a parameter of any kind or a running statistic.
struct Plain {
    path: String,
    shape: Vec<usize>,
    kind: Kind,
    /// Its values, if they were asked for.
    data: Option<TensorData>,
}

/// The kind of a tensor's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Float,
    Int,
    Bool,
}

/// The tensors of `model`, with the values of those whose path `read` accepts. Refuses reparameterizations.
fn plain_tensors(model: &impl Module, read: impl Fn(&str) -> bool) -> Result<Vec<Plain>, Error> {
    let mut tensors: Result<Vec<Plain>, Error> = Ok(vec![]);
    walk(model, |place, item| {
        let (Ok(found), path) = (&mut tensors, place.parameter()) else { return };
        let read = |data: &dyn Fn() -> Result<TensorData, String>| read(&path).then(data).transpose();
        let (kind, shape, data) = match item {
            Item::Attached(_) => return tensors = Err(Error::Reparameterized { path }),
            Item::Float(param) => (Kind::Float, param.stored_shape(), read(&|| param.data())),
            Item::Int(shape, data) => (Kind::Int, shape, read(data)),
            Item::Bool(shape, data) => (Kind::Bool, shape, read(data)),
        };
        match data {
            Ok(data) => found.push(Plain { path, shape, kind, data }),
            Err(reason) => tensors = Err(Error::Read { path, reason }),
        }
    });
    tensors
}

/// burn's dtypes of numbers, and those of safetensors.
const DTYPES: [(DType, Dtype); 12] = [
    (DType::F64, Dtype::F64),
    (DType::F32, Dtype::F32),
    (DType::F16, Dtype::F16),
    (DType::BF16, Dtype::BF16),
    (DType::I64, Dtype::I64),
    (DType::I32, Dtype::I32),
    (DType::I16, Dtype::I16),
    (DType::I8, Dtype::I8),
    (DType::U64, Dtype::U64),
    (DType::U32, Dtype::U32),
    (DType::U16, Dtype::U16),
    (DType::U8, Dtype::U8),
];

/// The dtype in a file of a tensor with burn's `dtype`; none for quantised tensors.
fn stored_dtype(dtype: DType) -> Option<Dtype> {
    match dtype {
        DType::Flex32 => Some(Dtype::F32),
        DType::Bool(_) => Some(Dtype::BOOL),
        _ => DTYPES.into_iter().find(|(burn, _)| *burn == dtype).map(|(_, stored)| stored),
    }
}

fn codes_of(weight: &QuantizedWeight) -> Stored {
    let bytes = codes::pack(weight.codes(), weight.bits());
    match weight.bits() {
        8 => Stored { dtype: Dtype::I8, shape: weight.shape().to_vec(), bytes },
        _ => Stored { dtype: Dtype::U8, shape: vec![bytes.len()], bytes },
    }
}

fn scales_of(weight: &QuantizedWeight) -> Stored {
    let shape = vec![weight.blocks().groups, 1, weight.blocks().columns];
    let scales = weight.scales();
    match weight.half_scales() {
        true => {
            let bytes = scales.iter().flat_map(|scale| f16::from_f32(*scale).to_le_bytes()).collect();
            Stored { dtype: Dtype::F16, shape, bytes }
        }
        false => Stored::f32(shape, scales),
    }
}

/// The quantised weights and the other tensors of a file.
fn read(bytes: &[u8]) -> Result<(QuantizedModel, BTreeMap<String, Stored>), String> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }

    let (_, metadata) =
        SafeTensors::read_metadata(bytes).map_err(|error| format!("it is no file of safetensors: {error}"))?;
    let description = metadata.metadata().as_ref().and_then(|metadata| metadata.get(KEY));
    let description = description.ok_or_else(|| format!("it is no quantised model: its metadata have no '{KEY}'"))?;
    let broken = |error: serde_json::Error| format!("its metadata cannot be read: {error}");
    let Version { version } = serde_json::from_str(description).map_err(broken)?;
    if version != VERSION {
        return Err(format!("it has version {version}, expected {VERSION}"));
    }
    let description: Description = serde_json::from_str(description).map_err(broken)?;
    let file = SafeTensors::deserialize(bytes).map_err(|error| error.to_string())?;
    let tensors: BTreeMap<&str, TensorView<'_>> = file.iter().collect();
    if checksum(&description.weights, tensors.iter().map(|(name, view)| (*name, view)))? != description.crc32 {
        return Err("it is damaged: its checksum is another one".to_owned());
    }

    let mut weights = BTreeMap::new();
    for (name, entry) in &description.weights {
        let part = |part: &str| {
            tensors.get(format!("{name}.{part}").as_str()).ok_or_else(|| format!("it has no tensor '{name}.{part}'"))
        };
        let weight = weight(entry, part("codes")?, part("scales")?).map_err(|reason| format!("'{name}': {reason}"))?;
        weights.insert(name.clone(), weight);
    }
    let parts: BTreeSet<String> =
        weights.keys().flat_map(|name| [format!("{name}.codes"), format!("{name}.scales")]).collect();
    let rest = tensors.iter().filter(|(name, _)| !parts.contains(**name));
    let rest = rest.map(|(name, view)| ((*name).to_owned(), Stored::of(view)));
    Ok((QuantizedModel::new(weights), rest.collect()))
}

fn weight(entry: &Entry, codes: &TensorView<'_>, scales: &TensorView<'_>) -> Result<QuantizedWeight, String> {
    let bits = entry.bits;
    super::weights::check_bits(bits).map_err(|error| error.to_string())?;
    let count =
        entry.shape.iter().try_fold(1_usize, |count, side| count.checked_mul(*side)).ok_or("its shape is too large")?;
    let codes = match codes.dtype() {
        Dtype::I8 if bits == 8 => codes::unpack(codes.data(), bits, count),
        Dtype::U8 if bits < 8 => codes::unpack(codes.data(), bits, count),
        other => return Err(format!("codes of {bits} bits have the dtype {other:?}")),
    };
    let codes = codes.ok_or_else(|| format!("it has not as many codes as a shape of {:?} needs", entry.shape))?;
    let (scales, half_scales) = match scales.dtype() {
        Dtype::F16 => {
            (scales.data().as_chunks().0.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f32()).collect(), true)
        }
        Dtype::F32 => (scales.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(), false),
        other => return Err(format!("scales have the dtype {other:?}, expected F16 or F32")),
    };
    QuantizedWeight::from_codes(&entry.shape, bits, entry.blocks, codes, scales, half_scales)
        .map_err(|error| error.to_string())
}

/// The values of a stored tensor, if it can be one of `kind`.
fn data(stored: Stored, kind: Kind) -> Option<TensorData> {
    let Stored { dtype, shape, bytes } = stored;
    if kind == Kind::Bool {
        let values = || bytes.iter().map(|byte| *byte != 0).collect::<Vec<_>>();
        return (dtype == Dtype::BOOL).then(|| TensorData::new(values(), shape));
    }
    let (dtype, _) = DTYPES.into_iter().find(|(_, stored)| *stored == dtype)?;
    (dtype.is_float() == (kind == Kind::Float)).then(|| TensorData::from_bytes_vec(bytes, shape, dtype))
}

fn checksum<'a, 'b: 'a>(
    entries: &BTreeMap<String, Entry>,
    tensors: impl Iterator<Item = (&'a str, &'a TensorView<'b>)>,
) -> Result<u32, String> {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&serde_json::to_vec(entries).map_err(|error| error.to_string())?);
    for (name, view) in tensors {
        crc.update(format!("{name} {:?} {:?}", view.dtype(), view.shape()).as_bytes());
        crc.update(view.data());
    }
    Ok(crc.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(entry: &str, dtype: Dtype, shape: &[usize], codes: &[u8], scales: &[f32]) -> Vec<u8> {
        let entries: BTreeMap<String, Entry> = serde_json::from_str(&format!(r#"{{"w":{entry}}}"#)).unwrap();
        let scales: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        let views = [
            ("w.codes", TensorView::new(dtype, shape.to_vec(), codes).unwrap()),
            ("w.scales", TensorView::new(Dtype::F32, vec![scales.len() / 4], &scales).unwrap()),
        ];
        let crc32 = checksum(&entries, views.iter().map(|(name, view)| (*name, view))).unwrap();
        let description = Description { version: VERSION, crc32, weights: entries };
        let metadata = HashMap::from([(KEY.to_owned(), serde_json::to_string(&description).unwrap())]);
        safetensors::serialize(views, Some(metadata)).unwrap()
    }

    /// Files whose checksum is right and whose numbers are not.
    #[test]
    fn numbers_that_do_not_agree_are_refused() {
        let entry = |bits: u8, shape: &str, blocks: [u64; 3]| {
            let [groups, length, columns] = blocks;
            format!(
                r#"{{"bits":{bits},"shape":{shape},"blocks":{{"groups":{groups},"length":{length},"columns":{columns}}}}}"#
            )
        };
        let good = entry(4, "[2,2]", [2, 2, 1]);
        assert!(read(&file(&good, Dtype::U8, &[2], &[0, 0], &[1.0, 1.0])).is_ok());
        let huge = 1 << 40;
        for (entry, dtype, shape, codes, scales) in [
            (good.clone(), Dtype::U8, &[2][..], &[0, 0][..], &[1.0][..]),
            (good.clone(), Dtype::U8, &[2], &[0, 0], &[1.0, 0.0]),
            (good.clone(), Dtype::U8, &[2], &[0, 0], &[1.0, f32::NAN]),
            (good.clone(), Dtype::U8, &[2], &[8, 0], &[1.0, 1.0]),
            (good.clone(), Dtype::U8, &[3], &[0, 0, 0], &[1.0, 1.0]),
            (good, Dtype::I8, &[2], &[0, 0], &[1.0, 1.0]),
            (entry(0, "[2,2]", [2, 2, 1]), Dtype::U8, &[2], &[0, 0], &[1.0, 1.0]),
            (entry(255, "[2,2]", [2, 2, 1]), Dtype::U8, &[2], &[0, 0], &[1.0, 1.0]),
            (entry(4, "[2,2]", [1, 2, 1]), Dtype::U8, &[2], &[0, 0], &[1.0]),
            (entry(4, "[1099511627776,1099511627776]", [2, 2, 1]), Dtype::U8, &[2], &[0, 0], &[1.0, 1.0]),
            (entry(4, "[1099511627776]", [2, 2, 1]), Dtype::U8, &[2], &[0, 0], &[1.0, 1.0]),
            (entry(4, "[2,2]", [huge, huge, 1]), Dtype::U8, &[2], &[0, 0], &[1.0, 1.0]),
            (entry(4, "[0]", [huge, 0, huge]), Dtype::U8, &[0], &[], &[]),
        ] {
            assert!(read(&file(&entry, dtype, shape, codes, scales)).is_err(), "{entry} {codes:?} {scales:?}");
        }
    }
}
