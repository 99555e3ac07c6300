//! What each number of bits costs each weight of a model.

use super::assign::{BitChoice, LayerChoices};
use super::codes;
use super::error_report::squared_error;
use super::model::{blocks_of, for_each_chosen};
use super::settings::Quantization;
use super::weights::{check_bits, packed_bytes};
use crate::Error;
use burn::module::Module;
use std::collections::BTreeMap;

/// The choices of bits for each weight that `settings` chooses, for [`assign_bits`](super::assign_bits).
///
/// The error of a choice is the sum of squared errors of the weight's values, which does not see what the model makes of them, times the
/// weight's sensitivity: 1 unless `sensitivities` has its path. A common sensitivity is the mean squared gradient of the loss (Z. Dong et
/// al., "HAWQ", ICCV 2019, in its diagonal form). The bits in `settings` are not read.
///
/// ```
/// use burn::nn::LinearConfig;
/// use burn::tensor::Device;
/// use kiln_compression::{Quantization, assign_bits, bit_choices, quantize};
///
/// let model = LinearConfig::new(64, 10).init(&Device::flex());
/// let mut settings = Quantization::default();
/// let choices = bit_choices(&model, &settings, &[2, 4, 8], &Default::default())?;
/// settings.bits_of = assign_bits(&choices, 400)?.bits;
/// let quantized = quantize(&model, &settings)?;
/// assert_eq!(quantized.weights()["weight"].bits(), 4);
/// # Ok::<(), kiln_compression::Error>(())
/// ```
///
/// # Errors
///
/// As [`quantize`](super::quantize); [`Error::InvalidSetting`] if a sensitivity is negative or not finite, and
/// [`Error::UnknownParameter`] if it belongs to no chosen weight.
pub fn bit_choices<M: Module>(
    model: &M,
    settings: &Quantization,
    bits: &[u8],
    sensitivities: &BTreeMap<String, f64>,
) -> Result<Vec<LayerChoices>, Error> {
    bits.iter().try_for_each(|bits| check_bits(*bits))?;
    if let Some(value) = sensitivities.values().find(|value| !(**value >= 0.0 && value.is_finite())) {
        return Err(Error::InvalidSetting {
            what: "a sensitivity",
            value: value.to_string(),
            expected: "a finite number of at least 0",
        });
    }
    let mut layers = Vec::new();
    for_each_chosen(model, settings, |parameter, _| {
        let blocks = blocks_of(parameter, settings);
        let values = parameter.values()?;
        if let Some(value) = values.iter().find(|value| !value.is_finite()) {
            return Err(Error::NotFinite { what: "a weight", value: value.to_string() });
        }
        let sensitivity = sensitivities.get(&parameter.path).copied().unwrap_or(1.0);
        let choice = |bits: &u8| {
            let scales = codes::scales(&values, &blocks, *bits, settings.range, settings.half_scales);
            let codes = codes::codes(&values, &blocks, &scales, *bits);
            let error = squared_error(&values, &codes::values(&codes, &blocks, &scales));
            let bytes = packed_bytes(codes.len(), scales.len(), *bits, settings.half_scales);
            BitChoice { bits: *bits, bytes, error: error * sensitivity }
        };
        layers.push(LayerChoices { path: parameter.path.clone(), choices: bits.iter().map(choice).collect() });
        Ok(())
    })?;
    match sensitivities.keys().find(|path| !layers.iter().any(|layer| layer.path == **path)) {
        Some(path) => {
            let known = layers.iter().map(|layer| layer.path.as_str()).collect::<Vec<_>>().join(", ");
            Err(Error::UnknownParameter { path: path.clone(), known })
        }
        None => Ok(layers),
    }
}
