//! Batch norm on burn's module, alone and with what follows it.

use burn::backend::Dispatch;
use burn::backend::tensor::FloatTensor;
use burn::module::{Module, ModuleMapper, Param};
use burn::nn::BatchNorm;
use burn::tensor::{Device, Tensor};

use super::graph::BatchNormLayer;
use super::parameters::BatchNormParameters;
use super::settings::{NormActivation, NormSettings};
use crate::check::{main_input, same_dtype, same_size, supported};
use crate::error::Error;

/// Batch norm (Ioffe and Szegedy 2015) with the parameters and running statistics of `norm`.
///
/// `x`: `[samples, channels, ..]` in f32, f16 or bf16; weight and bias in a dtype of their own. Computes in f32; the result has the dtype
/// of `x`. Drop-in for [`BatchNorm::forward`]: on a device with autodiff and in training it takes the statistics of the batch and updates
/// the running ones as burn does, with the biased variance (torch takes the unbiased one). Otherwise it takes the running statistics,
/// and gradients flow past them. A batch without values leaves them as they are.
///
/// Keeps its input for the backward pass; nothing where it takes the running statistics, and weight and bias want no gradient.
///
/// # Errors
/// [`Error::Size`], [`Error::DType`] when weight and bias differ, [`Error::UnsupportedDevice`], [`Error::UnsupportedDType`], and [`Error::InvalidSetting`] for an
/// input with one dimension.
pub fn batch_norm<const D: usize>(norm: &BatchNorm, x: Tensor<D>) -> Result<Tensor<D>, Error> {
    run(norm, x, None, NormActivation::None)
}

/// [`batch_norm`] and ReLU in one operation, without the tensor between them.
///
/// Keeps its input, from which the backward pass computes the sign of the output again by the same arithmetic, so that both passes
/// agree. The sign may differ from that of burn's own norm and ReLU where the value between them is within rounding of zero; the gradient
/// of that position then differs, and by 1 / n of it those of the channel's other n - 1.
///
/// The output alone would not do: the gradient of the input needs the normalised value at every position, and ReLU is not invertible
/// where it clips. [`batch_norm_leaky_relu`] keeps the output alone. Where the running statistics are used, and weight and bias want no
/// gradient, the output is all that is kept.
///
/// # Errors
/// Those of [`batch_norm`].
pub fn batch_norm_relu<const D: usize>(norm: &BatchNorm, x: Tensor<D>) -> Result<Tensor<D>, Error> {
    run(norm, x, None, NormActivation::Relu)
}

/// [`batch_norm`] and leaky ReLU, x where x > 0 and `slope` x elsewhere, in one operation that keeps its output alone (in-place activated
/// batch norm, Rota Bulò et al. 2018). The gradient at exactly 0 is `slope`, as in torch; burn's own leaky ReLU takes 1 there.
///
/// The next layer usually keeps the same tensor, so that the norm then costs no memory; the output also takes the memory of an input
/// that nobody else holds. The backward pass computes the normalised value from the output: x_hat = (z - bias) / weight with z = y or
/// y / `slope`. The rounding of y comes back as an error of x_hat of (|x_hat| + |bias / weight|) times that rounding. So the output is kept
/// only if all channels have |bias| <= 64 |weight| in f32 and |bias| <= 4 |weight| in 16 bits, and in f16 |weight| `slope` >= 1e-3. One
/// channel beyond makes the norm keep its input instead, as [`batch_norm_relu`] does.
///
/// Measured error of the input's gradient (root mean square, relative): f32 1e-7, and 5e-6 at |bias| = 100 |weight| with a gradient along
/// x_hat, the worst case. f16 2e-4 and bf16 1.6e-3 with any gradient that is not along x_hat, the rounding of the gradient itself; along
/// x_hat 1.9 times that at bias = 0, 4.4 times at |bias| = 2 |weight|, 14 times at 8.
///
/// # Errors
/// Those of [`batch_norm`], and [`Error::InvalidSetting`] for a slope that is not positive and finite.
pub fn batch_norm_leaky_relu<const D: usize>(norm: &BatchNorm, x: Tensor<D>, slope: f64) -> Result<Tensor<D>, Error> {
    run(norm, x, None, NormActivation::LeakyRelu { slope: slope as f32 })
}

/// [`batch_norm`] and an activation in one operation, without the tensor between them.
///
/// Keeps what [`batch_norm_relu`] keeps, with leaky ReLU what [`batch_norm_leaky_relu`] keeps. With hard-swish it keeps its input in any
/// case: the gradient depends on the value between norm and activation, which the output does not tell.
///
/// # Errors
/// Those of [`batch_norm_leaky_relu`].
pub fn batch_norm_activated<const D: usize>(
    norm: &BatchNorm,
    activation: NormActivation,
    x: Tensor<D>,
) -> Result<Tensor<D>, Error> {
    run(norm, x, None, activation)
}

/// relu([`batch_norm`]`(norm, x) + residual)` in one operation: the end of a residual block.
///
/// `residual`: of the shape and dtype of `x`. Keeps `x` and the output, which the next layer usually keeps as well; where the running
/// statistics are used, and weight and bias want no gradient, the output alone. The gradient of `residual` takes the memory of the output's.
///
/// # Errors
/// Those of [`batch_norm`], and [`Error::Size`] and [`Error::DType`] when `residual` differs from `x`.
pub fn batch_norm_add_relu<const D: usize>(
    norm: &BatchNorm,
    x: Tensor<D>,
    residual: Tensor<D>,
) -> Result<Tensor<D>, Error> {
    same_dtype(("the input", x.dtype()), ("the residual", residual.dtype()))?;
    for (of_x, of_residual) in x.dims().into_iter().zip(residual.dims()) {
        same_size(("a dimension of the input", of_x), ("the same dimension of the residual", of_residual))?;
    }
    run(norm, x, Some(residual), NormActivation::Relu)
}

fn run<const D: usize>(
    norm: &BatchNorm,
    x: Tensor<D>,
    residual: Option<Tensor<D>>,
    activation: NormActivation,
) -> Result<Tensor<D>, Error> {
    let pass = Pass::of(norm, &x, activation)?;
    let Some(residual) = residual else { return Ok(pass.run(x)) };
    let (x, residual) = (x.into_dispatch(), residual.into_dispatch());
    let (y, mean, variance) = Dispatch::batch_norm_add_layer(x, residual, pass.parameters);
    pass.updates.apply(mean, variance);
    Ok(Tensor::from_dispatch(y))
}

/// One pass through a norm.
pub(crate) struct Pass<'a> {
    pub(crate) parameters: BatchNormParameters<Dispatch>,
    pub(crate) updates: Updates<'a>,
}

/// The norm whose running statistics change, if they do.
pub(crate) struct Updates<'a>(Option<&'a BatchNorm>);

impl Updates<'_> {
    /// Gives the norm its new running mean and variance.
    pub(crate) fn apply(self, mean: FloatTensor<Dispatch>, variance: FloatTensor<Dispatch>) {
        if let Some(norm) = self.0 {
            for (state, value) in [(&norm.running_mean, mean), (&norm.running_var, variance)] {
                // Clones of a state share its value.
                let _ = state.clone().map(&mut Replace(value));
            }
        }
    }
}

/// Writes a value to a running state. `RunningState::update` would park it in a table by thread first, 6 KiB for each state, until
/// the next update or `valid`.
struct Replace(FloatTensor<Dispatch>);

impl ModuleMapper for Replace {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|_| Tensor::from_dispatch(self.0.clone()).detach())
    }
}

impl<'a> Pass<'a> {
    /// Checks the input.
    pub(crate) fn of<const D: usize>(
        norm: &'a BatchNorm,
        x: &Tensor<D>,
        activation: NormActivation,
    ) -> Result<Self, Error> {
        if D < 2 {
            return Err(Error::InvalidSetting {
                name: "the number of dimensions of the input",
                value: D.to_string(),
                expected: "at least 2 dimensions, [samples, channels, ..]",
            });
        }
        main_input("the input", x)?;
        let channels = ("the number of channels of the input", x.dims()[1]);
        Self::of_channels(norm, channels, x.shape().num_elements() == 0, &x.device(), activation)
    }

    /// Runs the norm alone, on the input that was checked.
    pub(crate) fn run<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        let (y, mean, variance) = Dispatch::batch_norm_layer(x.into_dispatch(), self.parameters);
        self.updates.apply(mean, variance);
        Tensor::from_dispatch(y)
    }

    /// Of an input that is not there yet. `channels`: what they are called, and their number.
    pub(crate) fn of_channels(
        norm: &'a BatchNorm,
        channels: (&'static str, usize),
        empty: bool,
        device: &Device,
        activation: NormActivation,
    ) -> Result<Self, Error> {
        if let NormActivation::LeakyRelu { slope } = activation
            && !(slope > 0.0 && slope.is_finite())
        {
            let (name, value) = ("the slope of leaky ReLU", slope.to_string());
            return Err(Error::InvalidSetting { name, value, expected: "a positive number" });
        }
        let (weight, bias) = (norm.gamma.val(), norm.beta.val());
        supported("the weight", weight.dtype())?;
        same_dtype(("the weight", weight.dtype()), ("the bias", bias.dtype()))?;
        same_size(channels, ("the length of the weight", weight.dims()[0]))?;
        let training = device.is_autodiff() && norm.training.is_enabled();
        // As burn: in training the newest statistics, in evaluation those that `valid` made current.
        let [mean, variance] = [&norm.running_mean, &norm.running_var].map(|state| {
            let state = if training { state.value_sync() } else { state.value() };
            // The device for recordings takes no tensors, not even its own.
            if state.device() == *device { state } else { state.to_device(device) }
        });
        for (name, length, state) in [
            ("the running mean", "the length of the running mean", &mean),
            ("the running variance", "the length of the running variance", &variance),
        ] {
            supported(name, state.dtype())?;
            same_size((length, state.dims()[0]), ("the length of the weight", weight.dims()[0]))?;
        }
        let momentum = training.then_some(norm.momentum);
        let [weight, bias, mean, variance] = [weight, bias, mean, variance].map(Tensor::into_dispatch);
        let settings = NormSettings { epsilon: norm.epsilon as f32, momentum, activation };
        let parameters = BatchNormParameters { weight, bias, mean, variance, settings };
        Ok(Self { parameters, updates: Updates((training && !empty).then_some(norm)) })
    }
}
