//! Where fake quantisation is attached.

use std::collections::BTreeMap;

use burn::module::{Module, Param, Reparameterizer};
use burn::tensor::Tensor;

use super::codes::largest_code;
use super::fake_quant::{FakeQuant, WeightCodes};
use super::input_range::InputRange;
use super::model::{blocks_of, for_each_chosen};
use super::settings::Quantization;
use crate::Error;

/// Attaches [`FakeQuant`] to the weights that [`Quantization`] chooses, so that a model trains with the values that its integers will have
/// (quantisation-aware training, Jacob et al. 2018, arXiv 1712.05877).
///
/// [`quantize`](super::quantize) turns the trained model, without the simulation ([`unsimulated`](super::unsimulated)), into exactly the
/// integers that were simulated, if it gets the same settings, with the range [`Max`](super::WeightRange::Max). A batch norm after a
/// convolution needs no folding for that: its factor belongs to an output channel, and so does a scale, so that folding changes scales and
/// not codes ([`fold_batch_norm`](super::fold_batch_norm)).
///
/// Weights that have another size than in the model that the settings were read from are left alone.
///
/// ```
/// use burn::module::Module;
/// use burn::nn::LinearConfig;
/// use burn::tensor::Device;
/// use kiln_compression::{FakeQuantizer, Quantization, quantize, unsimulated};
///
/// let plain = LinearConfig::new(8, 4).init(&Device::flex());
/// let settings = Quantization::bits(4);
/// let model = plain.clone().apply_reparameterization(FakeQuantizer::of(&plain, &settings)?);
/// // .. training ..
/// let trained = unsimulated(|| model.clone().materialize());
/// let integers = quantize(&trained, &settings)?;
/// let converted = integers.apply(plain)?;
/// assert_eq!(converted.weight.val().into_data(), model.weight.val().into_data());
/// # Ok::<(), kiln_compression::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct FakeQuantizer {
    weights: BTreeMap<String, Option<WeightCodes>>,
    /// How far a batch moves the ranges of inputs; none: inputs are not simulated.
    momentum: Option<f64>,
}

impl FakeQuantizer {
    /// Fake quantisation of the weights of `model` that `settings` choose, each block by its largest magnitude.
    ///
    /// # Errors
    /// Those of [`quantize`](super::quantize) for the settings.
    pub fn of(model: &impl Module, settings: &Quantization) -> Result<Self, Error> {
        let mut weights = BTreeMap::new();
        for_each_chosen(model, settings, |parameter, bits| {
            let (blocks, largest) = (blocks_of(parameter, settings), largest_code(bits));
            let codes = WeightCodes { blocks, largest, half_scales: settings.half_scales };
            weights.insert(parameter.path.clone(), Some(codes));
            Ok(())
        })?;
        Ok(Self { weights, momentum: None })
    }

    /// The same with the inputs of these layers in 8 bits as well, if the layers ask for it: see [`input_map`](super::input_map) and
    /// [`simulate_input`](super::simulate_input). Each training batch moves a range by `momentum` towards its own, 0 to 1; torch's default
    /// is 0.01, and with 0 ranges stay where [`set_input_ranges`](super::set_input_ranges) put them.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for a momentum out of range.
    pub fn with_inputs(self, momentum: f64) -> Result<Self, Error> {
        match (0.0..=1.0).contains(&momentum) {
            true => Ok(Self { momentum: Some(momentum), ..self }),
            false => {
                let (what, value) = ("the momentum of input ranges", momentum.to_string());
                Err(Error::InvalidSetting { what, value, expected: "0 to 1" })
            }
        }
    }

    /// The same without the weights, which are quantised already.
    #[must_use]
    pub fn inputs_only(mut self) -> Self {
        self.weights.values_mut().for_each(|codes| *codes = None);
        self
    }
}

impl Reparameterizer for FakeQuantizer {
    type Reparam = FakeQuant;

    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<FakeQuant>) {
        let count = param.lazy_shape().num_elements();
        let fits = |codes: &WeightCodes| codes.blocks.groups * codes.blocks.length * codes.blocks.columns == count;
        let Some(codes) = self.weights.get(path) else { return (param, None) };
        // An empty weight has no range.
        let codes = codes.filter(|codes| count > 0 && fits(codes));
        let device = param.lazy_device();
        let input = self.momentum.map(|momentum| InputRange::new(path, momentum, &device));
        let fake = (codes.is_some() || input.is_some()).then(|| FakeQuant::new(codes, input));
        (param, fake)
    }
}
