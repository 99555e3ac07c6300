//! Activations that keep one tensor for the backward pass.

mod composed;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
pub(crate) mod flex;
mod graph;
mod settings;

use burn::tensor::Tensor;
use kiln_operations::{run, run_light};

use crate::check::main_input;
use crate::error::Error;
use graph::{OfInput, Relu};

#[cfg(feature = "cube")]
pub(crate) use cube::sigmoid;
pub(crate) use graph::{activated, activation_gradient};
pub use settings::Activation;

fn apply<const D: usize>(x: Tensor<D>, activation: Activation) -> Result<Tensor<D>, Error> {
    main_input("the input", &x)?;
    let x = x.into_dispatch();
    Ok(Tensor::from_dispatch(match activation {
        Activation::Relu => run(Relu, vec![x]).remove(0),
        _ => run_light(OfInput(activation), x),
    }))
}

/// GELU: x Φ(x) with the normal distribution function Φ (Hendrycks and Gimpel 2016). Keeps its input.
///
/// `x` has any shape and is f32, f16 or bf16. The result is within 3e-7 of the exact value in f32.
///
/// # Errors
/// [`Error::UnsupportedDevice`] and [`Error::UnsupportedDType`].
pub fn gelu<const D: usize>(x: Tensor<D>) -> Result<Tensor<D>, Error> {
    apply(x, Activation::Gelu)
}

/// GELU's tanh approximation, as in GPT-2: any shape; f32, f16 or bf16. Keeps its input.
///
/// # Errors
/// [`Error::UnsupportedDevice`] and [`Error::UnsupportedDType`].
pub fn gelu_tanh<const D: usize>(x: Tensor<D>) -> Result<Tensor<D>, Error> {
    apply(x, Activation::GeluTanh)
}

/// SiLU, also called swish: x sigmoid(x), for any shape; f32, f16 or bf16. Keeps its input.
///
/// # Errors
/// [`Error::UnsupportedDevice`] and [`Error::UnsupportedDType`].
pub fn silu<const D: usize>(x: Tensor<D>) -> Result<Tensor<D>, Error> {
    apply(x, Activation::Silu)
}

/// ReLU: max(x, 0), for any shape; f32, f16 or bf16. Keeps its output, which the next layer keeps as well.
///
/// # Errors
/// [`Error::UnsupportedDevice`] and [`Error::UnsupportedDType`].
pub fn relu<const D: usize>(x: Tensor<D>) -> Result<Tensor<D>, Error> {
    apply(x, Activation::Relu)
}
