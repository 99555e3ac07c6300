//! Rotary position embedding.

use burn::backend::Dispatch;
use burn::tensor::Tensor;

use super::graph::RotaryLayer;
use super::settings::RotaryOptions;
use crate::check::main_input;
use crate::error::Error;

/// Rotary position embedding (Su et al. 2021). It rotates each pair of values of a row by an angle that is proportional to the row's
/// position.
///
/// `x` has queries or keys `[.., time, depth]` in f32, f16 or bf16, with an even depth. The result has the same shape and dtype. Angles
/// are computed in f64 and rotations in f32. Keeps nothing for the backward pass, which rotates the gradient back. Both passes overwrite
/// their argument if no other handle to it exists.
///
/// # Errors
/// [`Error::InvalidSetting`] for an odd depth, fewer than 2 dimensions and a theta that is not positive, [`Error::UnsupportedDevice`]
/// and [`Error::UnsupportedDType`].
pub fn rotary<const D: usize>(x: Tensor<D>, options: RotaryOptions) -> Result<Tensor<D>, Error> {
    main_input("the input", &x)?;
    let refused = |name, value, expected| Err(Error::InvalidSetting { name, value, expected });
    if D < 2 {
        return refused("the number of dimensions of the input", D.to_string(), "at least 2, [.., time, depth]");
    }
    let depth = x.dims()[D - 1];
    if !depth.is_multiple_of(2) {
        return refused("the last dimension of the input", depth.to_string(), "an even number");
    }
    if !(options.theta.is_finite() && options.theta > 0.0) {
        return refused("theta", options.theta.to_string(), "a positive number");
    }
    Ok(Tensor::from_dispatch(<Dispatch as RotaryLayer>::rotary_layer(x.into_dispatch(), options)))
}
