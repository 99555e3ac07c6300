//! The weights of a model, quantised.

use super::blocks::Blocks;
use super::settings::Quantization;
use super::weights::QuantizedWeight;
use crate::Error;
use crate::parameters::{self, Parameter};
use burn::module::Module;
use burn::tensor::TensorData;
use std::collections::{BTreeMap, BTreeSet};

/// Quantises the weights of `model` after training.
///
/// The model itself is not changed. [`QuantizedModel::apply`] gives a model that computes with the quantised weights, and
/// [`QuantizedModel::apply_packed`] one that also holds them as codes.
///
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::Device;
/// use kiln_compression::{Quantization, quantize};
///
/// let model: Linear = LinearConfig::new(64, 10).init(&Device::flex());
/// let quantized = quantize(&model, &Quantization::bits(8))?;
/// let bytes = quantized.bytes(&model)?;
/// assert_eq!(bytes.before, (64 * 10 + 10) * 4);
/// assert_eq!(bytes.after, 64 * 10 + 10 * 4 + 10 * 4); // codes, scales, the bias
/// let model = quantized.apply_packed(model)?;
/// # Ok::<(), kiln_compression::Error>(())
/// ```
///
/// # Errors
///
/// [`Error::InvalidSetting`] and [`Error::UnknownParameter`] for settings that do not fit the model, [`Error::Reparameterized`] if a
/// chosen weight has a reparameterization (materialize the model first), [`Error::NotFinite`] if a weight has a value that is infinite or
/// not a number, [`Error::Read`] if a device cannot give the values.
pub fn quantize<M: Module>(model: &M, settings: &Quantization) -> Result<QuantizedModel, Error> {
    let mut weights = BTreeMap::new();
    for_each_chosen(model, settings, |parameter, bits| {
        let blocks = blocks_of(parameter, settings);
        let values = parameter.values()?;
        let weight =
            QuantizedWeight::new(&parameter.shape, &values, blocks, bits, settings.range, settings.half_scales)?;
        weights.insert(parameter.path.clone(), weight);
        Ok(())
    })?;
    Ok(QuantizedModel { weights })
}

/// Calls `each` with the parameters that the settings choose and their bits.
pub(crate) fn for_each_chosen<M: Module>(
    model: &M,
    settings: &Quantization,
    mut each: impl FnMut(&Parameter<'_>, u8) -> Result<(), Error>,
) -> Result<(), Error> {
    let sites = parameters::sites(model);
    settings.check(&sites.iter().map(|site| site.path.as_str()).collect::<Vec<_>>())?;
    let mut chosen = BTreeMap::new();
    for site in &sites {
        if let Some(bits) = settings.chosen(&site.path, &site.kind, site.shape.len()) {
            site.expect_plain()?;
            chosen.insert(site.path.as_str(), bits);
        }
    }
    parameters::for_each(model, |parameter| match chosen.get(parameter.path.as_str()) {
        Some(bits) => each(parameter, *bits),
        None => Ok(()),
    })?;
    Ok(())
}

pub(crate) fn blocks_of(parameter: &Parameter<'_>, settings: &Quantization) -> Blocks {
    Blocks::of(&parameter.shape, parameter.kind == "Linear", settings.granularity)
}

/// Bytes of the float parameters and running statistics of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelBytes {
    /// With all of them as they are in the model.
    pub before: u64,
    /// With packed codes and scales in place of the quantised weights.
    pub after: u64,
}

/// The quantised weights of a model by path.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct QuantizedModel {
    weights: BTreeMap<String, QuantizedWeight>,
}

impl QuantizedModel {
    /// Weights that were quantised elsewhere.
    pub fn new(weights: BTreeMap<String, QuantizedWeight>) -> Self {
        Self { weights }
    }

    /// The weights by path.
    pub fn weights(&self) -> &BTreeMap<String, QuantizedWeight> {
        &self.weights
    }

    /// `model` with the values of the quantised weights in f32.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownParameter`] and [`Error::ShapeMismatch`] if the weights are not those of the model, [`Error::Reparameterized`] if
    /// one of them has a reparameterization there.
    pub fn apply<M: Module>(&self, model: M) -> Result<M, Error> {
        self.check(&model)?;
        Ok(parameters::replace(model, |path| {
            self.weights.get(path).map(|weight| TensorData::new(weight.dequantize(), weight.shape().to_vec()))
        }))
    }

    /// Bytes of `model` before and after.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownParameter`] and [`Error::ShapeMismatch`] if the weights are not those of the model.
    pub fn bytes<M: Module>(&self, model: &M) -> Result<ModelBytes, Error> {
        self.check_shapes(model)?;
        let mut bytes = ModelBytes { before: 0, after: 0 };
        parameters::for_each(model, |parameter| {
            bytes.before += parameter.bytes();
            bytes.after += self.weights.get(&parameter.path).map_or(parameter.bytes(), QuantizedWeight::bytes);
            Ok(())
        })?;
        Ok(bytes)
    }

    /// Checks that the model has these weights, and that nothing else changes their values.
    pub(crate) fn check<M: Module>(&self, model: &M) -> Result<(), Error> {
        let changed = self.check_shapes(model)?;
        match self.weights.keys().find(|path| changed.contains(*path)) {
            Some(path) => Err(Error::Reparameterized { path: path.clone() }),
            None => Ok(()),
        }
    }

    /// Checks that the model has these weights. Returns the parameters that have a reparameterization.
    fn check_shapes<M: Module>(&self, model: &M) -> Result<BTreeSet<String>, Error> {
        let mut shapes = BTreeMap::new();
        let changed = parameters::for_each(model, |parameter| {
            shapes.insert(parameter.path.clone(), parameter.shape.clone());
            Ok(())
        })?;
        for (path, weight) in &self.weights {
            let shape = shapes.get(path).ok_or_else(|| Error::unknown(path, shapes.keys()))?;
            if shape != weight.shape() {
                let (found, expected) = (weight.shape().to_vec(), shape.clone());
                return Err(Error::ShapeMismatch { path: path.clone(), found, expected });
            }
        }
        Ok(changed)
    }
}
