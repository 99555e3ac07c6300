//! Batch norm on burn's module, alone and with the activation and the residual after it.

#[cfg(feature = "flex")]
mod blocks;
#[cfg(feature = "flex")]
mod channel;
mod composed;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;
mod graph;
#[cfg(feature = "flex")]
mod pieces;
mod settings;

use burn::backend::DispatchTensor;
use burn::module::{Module, ModuleMapper, Param};
use burn::nn::BatchNorm;
use burn::tensor::{Device, Tensor};
use kiln_operations::{all, run};

use crate::check::{main_input, same_dtype, same_size, supported};
use crate::error::Error;

pub(crate) use graph::{norm_again, norm_backward, norm_forward};
pub use settings::NormActivation;
pub(crate) use settings::{BatchNormOutput, BatchNormSaved, NormSettings};

/// Batch norm (Ioffe and Szegedy 2015) with the parameters and running statistics of `norm`.
///
/// `x` is `[samples, channels, ..]` in f32, f16 or bf16. Weight and bias have a dtype of their own. Computes in f32; the result has the
/// dtype of `x`. It can replace [`BatchNorm::forward`]. In training, on a device with autodiff, it uses the statistics of the batch and
/// updates the running ones as burn does, with the biased variance (torch uses the unbiased one). Otherwise it uses the running
/// statistics, and they are constants for gradients. A batch without values leaves them unchanged.
///
/// Keeps its input for the backward pass. It keeps nothing if it uses the running statistics, and weight and bias need no gradient.
///
/// # Errors
/// [`Error::Size`], [`Error::DType`] when weight and bias differ, [`Error::UnsupportedDevice`], [`Error::UnsupportedDType`], and
/// [`Error::InvalidSetting`] for an input with one dimension.
pub fn batch_norm<const D: usize>(norm: &BatchNorm, x: Tensor<D>) -> Result<Tensor<D>, Error> {
    Ok(Pass::of(norm, &x, NormActivation::None)?.run(x, None))
}

/// [`batch_norm`] and the ReLU after it in one operation, without the tensor between them.
///
/// Keeps its input. The backward pass computes the sign of the output again by the same arithmetic, so that both passes agree. The sign
/// may differ from that of burn's own norm and ReLU if the value between them is within rounding of zero. The gradient of that position
/// then differs, and those of the channel's other n - 1 positions differ by 1 / n of it.
///
/// The output alone would not be enough: the gradient of the input needs the normalised value at every position, and ReLU is not
/// invertible where it clips. [`batch_norm_leaky_relu`] keeps the output alone. If the running statistics are used, and weight and bias
/// need no gradient, only the output is kept.
///
/// # Errors
/// Those of [`batch_norm`].
pub fn batch_norm_relu<const D: usize>(norm: &BatchNorm, x: Tensor<D>) -> Result<Tensor<D>, Error> {
    Ok(Pass::of(norm, &x, NormActivation::Relu)?.run(x, None))
}

/// [`batch_norm`] and leaky ReLU (x where x > 0, `slope` x elsewhere) in one operation that keeps only its output (in-place activated
/// batch norm, Rota Bulò et al. 2018). The gradient at exactly 0 is `slope`, as in torch; in burn's own leaky ReLU it is 1.
///
/// The next layer usually keeps the same tensor, so that the norm costs no memory. The output is written over the input if no other
/// handle to it exists. The backward pass computes the normalised value from the output: x_hat = (z - bias) / weight with z = y or y /
/// `slope`. The rounding of y causes an error of x_hat of (|x_hat| + |bias / weight|) times that rounding. So the output is kept only if
/// all channels have |bias| <= 64 |weight| in f32 and |bias| <= 4 |weight| in 16 bits, and in f16 |weight| `slope` >= 1e-3. If one
/// channel is outside of these bounds, the norm keeps its input instead, as [`batch_norm_relu`] does.
///
/// Measured error of the input's gradient (root mean square, relative): in f32 1e-7, and 5e-6 at |bias| = 100 |weight| with a gradient
/// along x_hat, which is the worst case. In f16 2e-4 and in bf16 1.6e-3 with any gradient that is not along x_hat, which is the rounding
/// of the gradient itself. Along x_hat it is 1.9 times that at bias = 0, 4.4 times at |bias| = 2 |weight|, and 14 times at 8.
///
/// # Errors
/// Those of [`batch_norm`], and [`Error::InvalidSetting`] for a slope that is not positive and finite.
pub fn batch_norm_leaky_relu<const D: usize>(norm: &BatchNorm, x: Tensor<D>, slope: f64) -> Result<Tensor<D>, Error> {
    Ok(Pass::of(norm, &x, NormActivation::LeakyRelu { slope: slope as f32 })?.run(x, None))
}

/// [`batch_norm`] and the activation after it in one operation, without the tensor between them.
///
/// Keeps the tensors that [`batch_norm_relu`] keeps, and for leaky ReLU those that [`batch_norm_leaky_relu`] keeps. For hard-swish it
/// always keeps its input: the gradient depends on the value between norm and activation, which cannot be computed from the output.
///
/// # Errors
/// Those of [`batch_norm_leaky_relu`].
pub fn batch_norm_activated<const D: usize>(
    norm: &BatchNorm,
    activation: NormActivation,
    x: Tensor<D>,
) -> Result<Tensor<D>, Error> {
    Ok(Pass::of(norm, &x, activation)?.run(x, None))
}

/// Batch norm, residual and ReLU in one operation, the end of a residual block: relu([`batch_norm`]`(norm, x) + residual)`.
///
/// `residual` has the shape and dtype of `x`. Keeps `x` and the output, which the next layer usually keeps as well. If the running
/// statistics are used, and weight and bias need no gradient, it keeps only the output. The gradient of `residual` is written over the
/// output's gradient.
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
    Ok(Pass::of(norm, &x, NormActivation::Relu)?.run(x, Some(residual)))
}

/// One pass through a norm.
pub(crate) struct Pass<'a> {
    /// Weight, bias, running mean and running variance.
    pub(crate) channels: [DispatchTensor; 4],
    pub(crate) settings: NormSettings,
    pub(crate) updates: Updates<'a>,
}

/// The norm whose running statistics are updated, if they are.
pub(crate) struct Updates<'a>(Option<&'a BatchNorm>);

impl Updates<'_> {
    /// Sets the norm's new running mean and variance.
    pub(crate) fn apply(self, [mean, variance]: [DispatchTensor; 2]) {
        if let Some(norm) = self.0 {
            for (state, value) in [(&norm.running_mean, mean), (&norm.running_var, variance)] {
                // Clones of a state share its value.
                let _ = state.clone().map(&mut Replace(value));
            }
        }
    }
}

/// Writes a value to a running state. `RunningState::update` would first store it in a table by thread, 6 KiB for each state, until the
/// next update or `valid`.
struct Replace(DispatchTensor);

impl ModuleMapper for Replace {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|_| Tensor::from_dispatch(self.0.clone()).detach())
    }
}

impl<'a> Pass<'a> {
    /// Checks the input, and reads the norm's parameters and statistics.
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

    /// Runs the norm, its residual and its activation on the input that was checked.
    pub(crate) fn run<const D: usize>(self, x: Tensor<D>, residual: Option<Tensor<D>>) -> Tensor<D> {
        let residual = residual.map(Tensor::into_dispatch);
        let inputs = [x.into_dispatch()].into_iter().chain(self.channels).chain(residual).collect();
        let [y, mean, variance] = all(run(self.settings, inputs));
        self.updates.apply([mean, variance]);
        Tensor::from_dispatch(y)
    }

    /// Prepares a pass on an input that does not exist yet. `channels` are their name in error messages and their number.
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
        // As in burn: in training the newest statistics, in evaluation those that `valid` made current.
        let [mean, variance] = [&norm.running_mean, &norm.running_var].map(|state| {
            let state = if training { state.value_sync() } else { state.value() };
            // burn's recording device accepts no tensors that are moved to it, not even its own.
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
        let channels = [weight, bias, mean, variance].map(Tensor::into_dispatch);
        let settings = NormSettings { epsilon: norm.epsilon as f32, momentum, activation };
        Ok(Self { channels, settings, updates: Updates((training && !empty).then_some(norm)) })
    }
}
