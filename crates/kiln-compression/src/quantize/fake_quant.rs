//! Fake quantisation: a model that computes in floats with exactly the values that its integers will have.

use std::cell::RefCell;
use std::collections::BTreeMap;

use burn::module::{Module, Param, Reparameterization, Reparameterizer};
use burn::tensor::{DType, Tensor};

use super::blocks::Blocks;
use super::codes::largest_code;
use super::input_range::{InputRange, during, note_range};
use super::model::{blocks_of, for_each_chosen};
use super::settings::Quantization;
use crate::Error;

/// Attaches [`FakeQuant`] to the weights that [`Quantization`] chooses, so that a model trains with the values that its integers will have
/// (quantisation-aware training, Jacob et al. 2018, arXiv 1712.05877).
///
/// [`quantize`](super::quantize) turns the trained model, without the simulation ([`unsimulated`]), into exactly the
/// integers that were simulated, if it gets the same settings, with the range [`Max`](super::WeightRange::Max).
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
    /// The share by which a batch moves the ranges of inputs; `None` if inputs are not simulated.
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

    /// Simulates the inputs of these layers as unsigned 8-bit integers with a zero point as well, if the layers ask for it: see
    /// [`input_map`](super::input_map) and [`simulate_input`](super::simulate_input).
    ///
    /// While a model trains, each batch moves a layer's range by a fraction `momentum`, 0 to 1, towards the batch's own smallest and largest
    /// value; the first batch sets it (torch's `MovingAverageMinMaxObserver`, whose default is 0.01). In a model without autodiff, in one
    /// that is frozen, and with a momentum of 0, ranges stay where [`set_input_ranges`](super::set_input_ranges) put them. A range that was
    /// never set leaves inputs as they are. A batch with a number that is not finite moves nothing.
    ///
    /// Clones of a module share ranges, as they share batch-norm's statistics; `valid` makes ranges of its own. Batches that several threads
    /// run at once are averaged. As with batch-norm's statistics, a segment that is recomputed must run on ranges of its own, as those of
    /// `valid`, and a record has the last batch only after `valid` or [`input_ranges`](super::input_ranges) was called.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for a momentum out of range.
    pub fn with_inputs(self, momentum: f64) -> Result<Self, Error> {
        match (0.0..=1.0).contains(&momentum) {
            true => Ok(Self { momentum: Some(momentum), ..self }),
            false => Err(Error::invalid("the momentum of input ranges", momentum, "0 to 1")),
        }
    }

    /// Simulates the inputs only, for weights that are quantised already.
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
        let fake = (codes.is_some() || input.is_some()).then(|| FakeQuant { weight: codes, input });
        (param, fake)
    }
}

thread_local! {
    /// Set while [`unsimulated`] runs.
    static UNSIMULATED: RefCell<Option<()>> = const { RefCell::new(None) };
}

/// Runs `f`, in which weights under [`FakeQuant`] are read as they are, without the simulation: a model that is merged in it
/// (`model.materialize()`) keeps its masks and adapters, and is ready for [`quantize`](super::quantize).
pub fn unsimulated<R>(f: impl FnOnce() -> R) -> R {
    during(&UNSIMULATED, (), f).0
}

/// The reparameterization that [`FakeQuantizer`] attaches: a layer reads the weight as its integers would give it, and the gradient
/// passes to the stored weight unchanged (the straight-through estimator, Bengio et al. 2013).
///
/// The range of each block is its largest magnitude, at every reading anew, so that no weight is clipped.
#[derive(Module, Debug)]
pub struct FakeQuant {
    /// None where only the layer's input is simulated.
    #[module(skip)]
    weight: Option<WeightCodes>,
    /// None where only the weight is simulated.
    input: Option<InputRange>,
}

/// The codes that a weight has.
#[derive(Clone, Copy, Debug)]
struct WeightCodes {
    blocks: Blocks,
    /// The largest code: 127 for 8 bits.
    largest: f32,
    half_scales: bool,
}

impl Reparameterization for FakeQuant {
    const NAME: &'static str = "fake_quant";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        let passes = note_range(self.input.as_ref()) || UNSIMULATED.with_borrow(Option::is_some);
        let Some(codes) = self.weight.filter(|_| !passes) else { return base };
        let dtype = base.dtype();
        let base = base.cast(DType::F32);
        // A parameter that is detached is still a leaf that asks for a gradient, and the simulation would be kept for it.
        let stored = base.clone().detach().set_require_grad(false);
        let simulated = codes.simulate(stored.clone());
        // The first part is exactly zero, and brings the gradient.
        ((base - stored) + simulated).cast(dtype)
    }
}

impl WeightCodes {
    /// The values of `weight` as its codes and scales give them, bit for bit those of a [`QuantizedWeight`](super::QuantizedWeight).
    fn simulate<const D: usize>(self, weight: Tensor<D>) -> Tensor<D> {
        let Blocks { groups, length, columns } = self.blocks;
        let shape = weight.shape();
        let weight = weight.reshape([groups, length, columns]);
        let largest = f64::from(self.largest);
        let scales = weight.clone().abs().max_dim(1) / largest;
        let scales = match self.half_scales {
            true => round_up_to_f16(scales),
            false => scales,
        };
        let zeros = scales.clone().equal_elem(0.0);
        let scales = scales.mask_fill(zeros, 1.0);
        let codes = (weight / scales.clone()).round().clamp(-largest, largest);
        (codes * scales).reshape(shape)
    }
}

/// Each positive number as the smallest f16 that is not below it, and 65504 above their range; 0 stays.
fn round_up_to_f16(scales: Tensor<3>) -> Tensor<3> {
    /// The smallest normal number of f16, and the step below it.
    const NORMAL: f64 = 6.103515625e-5;
    const STEP: f64 = 5.960464477539063e-8;
    let scales = scales.clamp_max(65504.0);
    let nearest = scales.clone().cast(DType::F16).cast(DType::F32);
    // Three quarters of a step of the smallest mantissa and up to one and a half steps of the largest: the nearest is the next one.
    let next = (nearest.clone() * (1.0 + 0.75 / 1024.0)).cast(DType::F16).cast(DType::F32);
    let next = next.mask_where(nearest.clone().lower_elem(NORMAL), nearest.clone() + STEP);
    nearest.clone().mask_where(nearest.lower(scales), next)
}
