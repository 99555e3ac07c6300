//! Group norm and instance norm, on burn's modules.

mod composed;
#[cfg(feature = "cube")]
#[allow(missing_docs, reason = "the macro writes a module for each kernel")]
mod cube;
#[cfg(feature = "flex")]
mod flex;
mod graph;
mod settings;

use burn::module::Param;
use burn::nn::{GroupNorm, InstanceNorm};
use burn::tensor::{DType, Tensor};

use crate::check::{main_input, same_dtype, same_size, supported};
use crate::error::Error;

pub(crate) use settings::GroupNormSettings;

/// Group norm (Wu and He 2018), as [`GroupNorm::forward`]. Each group of channels of a sample gets mean 0 and variance 1, before gamma
/// and beta of each channel are applied.
///
/// `x` is `[samples, channels, ..]` in f32, f16 or bf16. Gamma and beta have a dtype of their own. Computes in f32. Keeps the input and
/// two f32 values for each group of a sample.
///
/// # Errors
/// [`Error::Size`], [`Error::DType`] when gamma and beta differ, [`Error::UnsupportedDevice`], [`Error::UnsupportedDType`], and
/// [`Error::InvalidSetting`] for an input with one dimension or a number of groups that does not divide the number of channels.
pub fn group_norm<const D: usize>(norm: &GroupNorm, x: Tensor<D>) -> Result<Tensor<D>, Error> {
    run([&norm.gamma, &norm.beta], norm.num_channels, norm.num_groups, norm.epsilon, x)
}

/// Instance norm (Ulyanov et al. 2016), as [`InstanceNorm::forward`]: a [`group_norm`] with one channel in a group.
///
/// # Errors
/// Those of [`group_norm`].
pub fn instance_norm<const D: usize>(norm: &InstanceNorm, x: Tensor<D>) -> Result<Tensor<D>, Error> {
    run([&norm.gamma, &norm.beta], norm.num_channels, norm.num_channels, norm.epsilon, x)
}

fn run<const D: usize>(
    [weight, bias]: [&Option<Param<Tensor<1>>>; 2],
    channels: usize,
    groups: usize,
    epsilon: f64,
    x: Tensor<D>,
) -> Result<Tensor<D>, Error> {
    if D < 2 {
        let (value, expected) = (D.to_string(), "at least 2 dimensions, [samples, channels, ..]");
        return Err(Error::InvalidSetting { name: "the number of dimensions of the input", value, expected });
    }
    if groups == 0 || !channels.is_multiple_of(groups) {
        let (value, expected) = (groups.to_string(), "a number that divides the number of channels");
        return Err(Error::InvalidSetting { name: "the number of groups", value, expected });
    }
    main_input("the input", &x)?;
    same_size(("the number of channels of the input", x.dims()[1]), ("that of the norm", channels))?;
    // A missing parameter has no elements.
    let device = x.device();
    let [weight, bias] = [weight, bias].map(|parameter| match parameter {
        Some(parameter) => parameter.val(),
        None => Tensor::empty([0], (&device, DType::F32)),
    });
    for (name, parameter) in [("the length of the weight", &weight), ("the length of the bias", &bias)] {
        supported("the weight", parameter.dtype())?;
        if parameter.dims() != [0] {
            same_size(("the number of channels of the input", channels), (name, parameter.dims()[0]))?;
        }
    }
    same_dtype(("the weight", weight.dtype()), ("the bias", bias.dtype()))?;
    let settings = GroupNormSettings { groups, epsilon: epsilon as f32 };
    Ok(Tensor::from_dispatch(
        kiln_operations::run(settings, [x.into_dispatch(), weight.into_dispatch(), bias.into_dispatch()].into())
            .remove(0),
    ))
}
