//! Linear layers, alone or with the norm or the activation before them.

mod add_product;
mod composed;
#[cfg(feature = "flex")]
mod flex;
mod graph;
mod low_rank;
mod parameters;
#[cfg(feature = "flex")]
mod prologue;
mod settings;
#[cfg(feature = "flex")]
mod values;
#[cfg(feature = "flex")]
mod weight;

use burn::backend::DispatchTensor;
use burn::nn::Linear;
use burn::tensor::{DType, Device, Tensor};
use kiln_operations::{read_parameter, weight_parts};

use crate::activation::Activation;
use crate::check::{main_input, same_dtype, same_size, supported};
use crate::error::Error;
use crate::norm::Norm;

pub(crate) use graph::LinearSaved;
pub(crate) use low_rank::{
    LayerBackward, LinearInParts, OfLayer, changed_linear, layer_backward, layer_gradients, nothing, plain,
    prologue_gradients,
};
pub(crate) use parameters::{Appended, Change, PARAMETERS, Parameters, Parts, Weight as LayerWeight};
pub(crate) use settings::Prologue;

/// The linear layer x weight + bias, as [`Linear::forward`].
///
/// `x` is `[.., inputs]` in f32, f16 or bf16. The parameters have a dtype of their own, which may be f32 for an input of 16 bits: no copy
/// of them in 16 bits is needed. The weight may be stored by rows or by columns, and its gradient has the same layout. Sums are f32. If `x` and
/// the weight are bf16, the values that are multiplied are bf16, on the CPU as on GPUs: the output of a norm or of an activation is rounded before.
/// The result `[.., outputs]` has the dtype of `x`. Keeps the input.
///
/// # Errors
/// [`Error::Size`], [`Error::DType`] when weight and bias differ, [`Error::UnsupportedDevice`] and [`Error::UnsupportedDType`].
pub fn linear<const D: usize>(linear: &Linear, x: Tensor<D>) -> Result<Tensor<D>, Error> {
    run(Input::Plain, linear, x)
}

/// A [layer norm](crate::layer_norm) or [RMS norm](crate::rms_norm) and the linear layer after it: `linear(norm(x))`.
///
/// Keeps the input and two f32 values for each row. The backward pass computes the norm's output again, some rows at a time. Shapes and
/// dtypes are those of [`linear`].
///
/// # Errors
/// Those of [`linear`] and [`layer_norm`](crate::layer_norm).
pub fn norm_linear<'a, const D: usize>(
    norm: impl Into<Norm<'a>>,
    linear: &Linear,
    x: Tensor<D>,
) -> Result<Tensor<D>, Error> {
    run(Input::Norm(norm.into()), linear, x)
}

/// An activation and the linear layer after it: `linear(activation(x))`.
///
/// Keeps the input. The backward pass computes the activation's output again, some rows at a time, and writes the gradient of the input
/// over the input if no other handle to it exists. Shapes and dtypes are those of [`linear`]. With [`norm_linear`] this is the
/// feed-forward part of a transformer, which keeps `x` and `hidden`:
///
/// ```
/// use burn::nn::{LayerNormConfig, LinearConfig};
/// use burn::tensor::{Device, Distribution, Tensor};
/// use kiln_layers::{Activation, activation_linear, norm_linear};
///
/// let device = Device::flex().autodiff();
/// let norm = LayerNormConfig::new(32).init(&device);
/// let (up, down) = (LinearConfig::new(32, 128).init(&device), LinearConfig::new(128, 32).init(&device));
/// let x = Tensor::<3>::random([2, 16, 32], Distribution::Default, &device);
/// let hidden = norm_linear(&norm, &up, x.clone())?;
/// let y = x + activation_linear(Activation::Gelu, &down, hidden)?;
/// assert_eq!(y.dims(), [2, 16, 32]);
/// # Ok::<(), kiln_layers::Error>(())
/// ```
///
/// # Errors
/// Those of [`linear`].
pub fn activation_linear<const D: usize>(
    activation: Activation,
    linear: &Linear,
    x: Tensor<D>,
) -> Result<Tensor<D>, Error> {
    run(Input::Activation(activation), linear, x)
}

/// The operation before a linear layer's product.
#[derive(Clone, Copy)]
pub(crate) enum Input<'a> {
    Plain,
    Norm(Norm<'a>),
    Activation(Activation),
}

fn run<const D: usize>(input: Input<'_>, linear: &Linear, x: Tensor<D>) -> Result<Tensor<D>, Error> {
    let Prepared { prologue, mut inputs, parts } = prepared(input, linear, x)?;
    let mut made = match parts.is_any() {
        false => kiln_operations::run(prologue, inputs),
        true => {
            let appended = Appended::append(&mut inputs, [parts]);
            kiln_operations::run(LinearInParts { prologue, appended }, inputs)
        }
    };
    Ok(Tensor::from_dispatch(made.remove(0)))
}

/// A layer that was checked against its input.
pub(crate) struct Prepared {
    pub(crate) prologue: Prologue,
    /// x, weight and bias of the norm, weight and bias of the layer.
    pub(crate) inputs: Vec<DispatchTensor>,
    /// What the weight is computed with.
    pub(crate) parts: Parts<DispatchTensor>,
}

/// Checks a linear layer against `x`.
pub(crate) fn prepared<const D: usize>(input: Input<'_>, linear: &Linear, x: Tensor<D>) -> Result<Prepared, Error> {
    main_input("the input", &x)?;
    let device = x.device();
    // A missing parameter has no elements.
    let none = |dtype: DType| Tensor::empty([0], (&device, dtype));
    let width = x.dims()[D - 1];
    let (prologue, norm_weight, norm_bias) = match input {
        Input::Plain => (Prologue::None, none(DType::F32), none(DType::F32)),
        Input::Activation(activation) => (Prologue::Activation(activation), none(DType::F32), none(DType::F32)),
        Input::Norm(norm) => {
            let (weight, bias, settings) = norm.parameters(width)?;
            (Prologue::Norm(settings), weight, bias)
        }
    };
    let dtype = x.dtype();
    let (layer, parts) = parameters(linear, width, (&device, dtype))?.into_inputs();
    let norm = [norm_weight, norm_bias].map(Tensor::into_dispatch);
    let inputs = [x.into_dispatch()].into_iter().chain(norm).chain(layer);
    Ok(Prepared { prologue, inputs: inputs.collect(), parts })
}

/// The parameters of a layer whose inputs are rows of `width` values in `dtype`. The parts of a weight are apart from it.
pub(crate) fn parameters(
    linear: &Linear,
    width: usize,
    (device, dtype): (&Device, DType),
) -> Result<Parameters, Error> {
    let bias = linear.bias.as_ref().map(|bias| bias.val());
    let bias_in = |dtype| match bias.clone() {
        // A policy's cast, which parts are read without, is on the bias alone.
        Some(bias) if bias.dtype() != dtype => read_parameter(bias, dtype),
        Some(bias) => bias,
        None => Tensor::empty([0], (device, dtype)),
    };
    let (parameters, of_weight) = match weight_parts(&linear.weight) {
        Some(parts) => {
            let of_weight = if parts.codes.is_some() { dtype } else { parts.weight.dtype() };
            (Parameters::in_parts(parts, bias_in(of_weight), device), of_weight)
        }
        None => {
            let (weight, of_bias) = (linear.weight.val(), bias.as_ref().map(|bias| bias.dtype()));
            let of_weight = weight.dtype();
            (Parameters::plain(weight, bias_in(of_bias.unwrap_or(of_weight))), of_weight)
        }
    };
    let Parameters { weight, bias, .. } = &parameters;
    let [inputs, outputs] = weight.dims();
    supported("the weight", of_weight)?;
    same_size(("the last dimension of the input", width), ("the number of rows of the weight", inputs))?;
    if linear.bias.is_some() {
        same_size(("the number of columns of the weight", outputs), ("the length of the bias", bias.dims()[0]))?;
        same_dtype(("the weight", of_weight), ("the bias", bias.dtype()))?;
    }
    Ok(parameters)
}
