//! Layer norm and RMS norm over the last dimension, on burn's modules.

pub(crate) mod composed;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
pub(crate) mod flex;
mod graph;
#[cfg(feature = "flex")]
pub(crate) mod rows;
mod settings;

use burn::module::{Content, DisplaySettings, ModuleDisplay};
use burn::nn::{LayerNorm, RmsNorm};
use burn::tensor::Tensor;

use crate::check::{main_input, same_dtype, same_size, supported};
use crate::error::Error;

pub(crate) use graph::{row_norm, row_norm_backward, row_norm_gradients, statistics_like};
pub(crate) use settings::NormSettings;

/// A norm over the last dimension.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Norm<'a> {
    /// Layer norm.
    Layer(&'a LayerNorm),
    /// RMS norm.
    Rms(&'a RmsNorm),
}

impl<'a> From<&'a LayerNorm> for Norm<'a> {
    fn from(norm: &'a LayerNorm) -> Self {
        Self::Layer(norm)
    }
}

impl<'a> From<&'a RmsNorm> for Norm<'a> {
    fn from(norm: &'a RmsNorm) -> Self {
        Self::Rms(norm)
    }
}

/// Weight, bias (without elements if there is none) and settings.
pub(crate) type NormParameters = (Tensor<1>, Tensor<1>, NormSettings);

impl Norm<'_> {
    /// The parameters, which must fit an input with rows of `width` values.
    pub(crate) fn parameters(self, width: usize) -> Result<NormParameters, Error> {
        let (weight, bias, epsilon) = match self {
            Self::Layer(norm) => (norm.gamma.val(), norm.beta.as_ref().map(|beta| beta.val()), epsilon(norm)?),
            Self::Rms(norm) => (norm.gamma.val(), None, norm.epsilon),
        };
        supported("the weight", weight.dtype())?;
        same_size(("the last dimension of the input", width), ("the length of the weight", weight.dims()[0]))?;
        let bias = bias.unwrap_or_else(|| Tensor::empty([0], (&weight.device(), weight.dtype())));
        same_dtype(("the weight", weight.dtype()), ("the bias", bias.dtype()))?;
        let centred = matches!(self, Self::Layer(_));
        Ok((weight, bias, NormSettings { epsilon: epsilon as f32, centred }))
    }
}

/// The epsilon of a layer norm. burn keeps it private, but shows it in full in the module's description.
fn epsilon(norm: &LayerNorm) -> Result<f64, Error> {
    let content = norm.custom_content(Content::new(DisplaySettings::new()));
    let attributes = content.map(|content| content.attributes).unwrap_or_default();
    let value = attributes.into_iter().find(|attribute| attribute.name == "epsilon").map(|attribute| attribute.value);
    value.as_deref().and_then(|value| value.parse().ok()).ok_or_else(|| Error::InvalidSetting {
        name: "the epsilon in the description of the layer norm",
        value: format!("{value:?}"),
        expected: "a number",
    })
}

/// Layer norm over the last dimension (Ba et al. 2016), as [`LayerNorm::forward`]: (x - mean) / sqrt(variance + epsilon) * gamma + beta.
///
/// `x` is `[.., width]` in f32, f16 or bf16. The parameters have a dtype of their own, which may be f32 for an input of 16 bits. Computes
/// in f32. Keeps the input and two f32 values for each row.
///
/// # Errors
/// [`Error::Size`], [`Error::DType`] when gamma and beta differ, [`Error::UnsupportedDevice`] and [`Error::UnsupportedDType`].
pub fn layer_norm<const D: usize>(norm: &LayerNorm, x: Tensor<D>) -> Result<Tensor<D>, Error> {
    run(norm.into(), x)
}

/// RMS norm over the last dimension (Zhang and Sennrich 2019), as [`RmsNorm::forward`]: x / sqrt(mean of squares + epsilon) * gamma.
///
/// Shapes, dtypes and saved tensors are those of [`layer_norm`].
///
/// # Errors
/// [`Error::Size`], [`Error::UnsupportedDevice`] and [`Error::UnsupportedDType`].
pub fn rms_norm<const D: usize>(norm: &RmsNorm, x: Tensor<D>) -> Result<Tensor<D>, Error> {
    run(norm.into(), x)
}

fn run<const D: usize>(norm: Norm<'_>, x: Tensor<D>) -> Result<Tensor<D>, Error> {
    main_input("the input", &x)?;
    let (weight, bias, settings) = norm.parameters(x.dims()[D - 1])?;
    let (weight, bias) = (weight.into_dispatch(), bias.into_dispatch());
    Ok(Tensor::from_dispatch(kiln_operations::run(settings, vec![x.into_dispatch(), weight, bias]).remove(0)))
}
