//! Weights that stay codes in memory.

use super::model::QuantizedModel;
use crate::Error;
use crate::parameters::on_device;
use burn::module::{Module, Param, Reparameterization, Reparameterizer};
use burn::tensor::quantization::{QuantScheme, QuantStore, QuantValue, ScaleDtype};
use burn::tensor::{DType, Device, Tensor, TensorData};
use half::f16;

impl QuantizedModel {
    /// `model` with its quantised weights as codes of one byte each; a layer that reads its weight gets the same values as by
    /// [`apply`](Self::apply), computed at each read. The weights are not trained.
    ///
    /// burn's record of such a model holds the codes as they are. It is loaded into a model that was packed with the same settings; its
    /// linear layers must not have the layout `Col`, whose records burn refuses to load into a layer that is initialised.
    ///
    /// # Errors
    ///
    /// As [`apply`](Self::apply).
    pub fn apply_packed<M: Module>(&self, model: M) -> Result<M, Error> {
        self.check(&model)?;
        Ok(model.apply_reparameterization(self.packing()))
    }

    /// The reparameterizer of [`apply_packed`](Self::apply_packed), for a [`Nest`](crate::Nest) with another one: adapters over codes,
    /// for instance. Weights that do not fit the model are left alone.
    ///
    /// ```
    /// use burn::module::Module;
    /// use burn::nn::LinearConfig;
    /// use burn::tensor::Device;
    /// use kiln_compression::{Dequantize, Quantization, quantize};
    ///
    /// let model = LinearConfig::new(8, 4).init(&Device::flex());
    /// let packed = model.clone().apply_reparameterization(quantize(&model, &Quantization::bits(8))?.packing());
    /// assert!(packed.weight.reparameterization::<Dequantize>().is_some());
    /// # Ok::<(), kiln_compression::Error>(())
    /// ```
    pub fn packing(&self) -> Packing<'_> {
        Packing { model: self }
    }
}

/// Attaches [`Dequantize`] to the weights of a [`QuantizedModel`].
#[derive(Debug, Clone, Copy)]
pub struct Packing<'a> {
    model: &'a QuantizedModel,
}

impl Reparameterizer for Packing<'_> {
    type Reparam = Dequantize;

    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Dequantize>) {
        let Some(weight) = self.model.weights().get(path).filter(|weight| *weight.shape() == param.base().dims())
        else {
            return (param, None);
        };
        let device = param.lazy_device();
        // The codes are a quantised tensor of burn with the scale 1. Its own blocks have at most 255 values a side, and shapes that
        // other tensors cannot follow, so that the scales are kept apart.
        let scheme = QuantScheme::default()
            .with_value(QuantValue::Q8S)
            .with_store(QuantStore::Native)
            .per_tensor(ScaleDtype::F32);
        let codes = TensorData::quantized(weight.codes().to_vec(), weight.shape().to_vec(), scheme, &[1.0], None);
        let shape = [weight.blocks().groups, 1, weight.blocks().columns];
        let scales = match weight.half_scales() {
            true => {
                TensorData::new(weight.scales().iter().map(|scale| f16::from_f32(*scale)).collect::<Vec<_>>(), shape)
            }
            false => TensorData::new(weight.scales().to_vec(), shape),
        };
        let scales = Param::from_tensor(on_device(scales, &device)).set_require_grad(false);
        let packed = param.set_require_grad(false).map(|_| on_device(codes, &device));
        (packed, Some(Dequantize { scales }))
    }
}

/// Multiplies codes by their scales when a layer reads its weight.
#[derive(Module, Debug)]
pub struct Dequantize {
    /// One scale for each block, `[groups, 1, columns]`, f32 or f16.
    pub scales: Param<Tensor<3>>,
}

impl Reparameterization for Dequantize {
    const NAME: &'static str = "dequantize";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        let shape = base.shape();
        let scales = self.scales.val().cast(DType::F32);
        let [groups, _, columns] = scales.dims();
        let length = shape.num_elements() / (groups * columns).max(1);
        // A code has the same value in every float type.
        let codes = base.dequantize().cast(DType::F32).reshape([groups, length, columns]);
        codes.mul(scales).reshape(shape)
    }
}

/// Checks that `device` holds values of `scheme`, for users of burn's own `Quantizer`.
///
/// The backend Flex takes the 8-bit floats E4M3 and E5M2 and the 4-bit float E2M1, casts them to whole numbers of 8 bits and so clips
/// them without a word. Whether a device does so is tried with a few numbers, because `supports_dtype` does not tell: it refuses all
/// quantised tensors on Flex, also those of whole numbers, which it holds. Schemes of whole numbers are not tried.
///
/// ```
/// use burn::tensor::Device;
/// use burn::tensor::quantization::{QuantScheme, QuantStore, QuantValue};
/// use kiln_compression::check_scheme;
///
/// let scheme = QuantScheme::default().with_store(QuantStore::Native);
/// assert!(check_scheme(&Device::flex(), &scheme.with_value(QuantValue::Q8S)).is_ok());
/// assert!(check_scheme(&Device::flex(), &scheme.with_value(QuantValue::E4M3)).is_err());
/// ```
///
/// # Errors
///
/// [`Error::UnsupportedScheme`].
pub fn check_scheme(device: &Device, scheme: &QuantScheme) -> Result<(), Error> {
    let unsupported =
        || Error::UnsupportedScheme { scheme: format!("{:?}", scheme.value), device: format!("{device:?}") };
    // A number of the type itself, and one that is small beside it: whole numbers of 8 bits lose both.
    let (largest, small) = match scheme.value {
        QuantValue::E4M3 => (448.0, 1.25),
        QuantValue::E5M2 => (57_344.0, 1.25),
        QuantValue::E2M1 => (6.0, 0.5),
        _ => return Ok(()),
    };
    let tried = [largest, small, -largest, -small, 0.0, 0.0, 0.0, 0.0_f32];
    let scheme = QuantScheme::default().with_value(scheme.value).with_store(scheme.store).per_tensor(ScaleDtype::F32);
    let kept = Tensor::<1>::from_data(tried, (device, DType::F32)).quantize_dynamic(&scheme).dequantize();
    let kept = kept.try_into_vec_as::<f32>().map_err(|_| unsupported())?;
    let close = |(kept, tried): (&f32, &f32)| (kept - tried).abs() <= 0.01 * tried.abs();
    if kept.iter().zip(&tried).all(close) { Ok(()) } else { Err(unsupported()) }
}
