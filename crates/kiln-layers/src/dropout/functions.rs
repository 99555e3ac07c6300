//! Dropout whose mask is computed again in the backward pass.

use burn::backend::Dispatch;
use burn::tensor::Tensor;

use super::graph::DropoutLayer;
use super::settings::DropoutSettings;
use crate::check::main_input;
use crate::error::Error;

/// Sets values to 0 with the given probability and divides the others by 1 minus that probability (Srivastava et al. 2014). Keeps
/// nothing.
///
/// The mask depends only on `seed` and the position of each value, so that the backward pass computes it again. The CPU device computes
/// it by Philox 4x32 with 7 rounds (Salmon et al. 2011), other devices by a simpler function. Give each call of a step a seed of its own.
/// `x` has any shape and is f32, f16 or bf16. Unlike [`Dropout`](burn::nn::Dropout) it also drops values on a device without autodiff: do
/// not call it when a model is evaluated.
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
