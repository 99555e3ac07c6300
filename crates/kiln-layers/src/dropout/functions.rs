//! Dropout whose mask is computed again in the backward pass.

use burn::backend::Dispatch;
use burn::tensor::Tensor;

use super::graph::DropoutLayer;
use super::settings::DropoutSettings;
use crate::check::main_input;
use crate::error::Error;

/// Sets values to 0 with the given probability and divides the others by what is left of it (Srivastava et al. 2014). Keeps nothing.
///
/// The mask is a function of `seed` and the position of each value alone (on the CPU device Philox 4x32 with 7
/// rounds, Salmon et al. 2011, on others a simpler one), so that the
/// backward pass computes it again: give each call of a step a seed of its own. `x`: any shape; f32, f16 or bf16. Unlike
/// [`Dropout`](burn::nn::Dropout) it also drops values on a device without autodiff: do not call it where a model is evaluated.
///
/// # Errors
/// [`Error::InvalidSetting`] for a probability out of range, and [`Error::UnsupportedDevice`], [`Error::UnsupportedDType`].
pub fn dropout<const D: usize>(x: Tensor<D>, probability: f64, seed: u64) -> Result<Tensor<D>, Error> {
    main_input("the input", &x)?;
    if !(0.0..=1.0).contains(&probability) {
        let (value, expected) = (probability.to_string(), "a number from 0 to 1");
        return Err(Error::InvalidSetting { name: "the probability of dropout", value, expected });
    }
    let settings = DropoutSettings { probability, seed };
    Ok(Tensor::from_dispatch(<Dispatch as DropoutLayer>::dropout_layer(x.into_dispatch(), settings)))
}
