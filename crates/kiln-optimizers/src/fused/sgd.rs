//! Stochastic gradient descent.

use burn::optim::{LearningRate, Optimizer, RecordState, SgdConfig, StateSink, StateSource, join_path};
use burn::tensor::{Device, Tensor};

use super::rule::{MomentumRule, SgdRule};
use super::together::scaled;
use super::update::Settings;
use super::update::{is_fused, update};

/// burn's [`Sgd`](burn::optim::Sgd) in one pass over parameter, gradient and velocity on the CPU device, with momentum, dampening,
/// Nesterov's momentum and weight decay (Sutskever et al. 2013).
///
/// Settings, records and results equal burn's, to the bit: a run that was saved with one resumes with the other. A tensor is updated in
/// place if no other handle to it exists. A clone of the parameter that is held elsewhere keeps its values. Parameters must be f32: those
/// of other dtypes and on other devices are updated by burn's operations.
///
/// Like burn's `build`, it leaves the configuration's gradient clipping to [`ModuleOptimizer`](burn::optim::ModuleOptimizer).
#[derive(Clone, Debug)]
pub struct FusedSgd {
    penalty: Option<f32>,
    momentum: Option<Momentum>,
}

/// State of [`FusedSgd`] for one parameter. Its record is the record of burn's [`SgdState`](burn::optim::SgdState).
#[derive(Clone, Debug)]
pub struct FusedSgdState<const D: usize> {
    /// The running gradient, with momentum.
    velocity: Option<Tensor<D>>,
}

impl<const D: usize> FusedSgdState<D> {
    pub(crate) fn new(velocity: Option<Tensor<D>>) -> Self {
        Self { velocity }
    }

    pub(crate) fn into_velocity(self) -> Option<Tensor<D>> {
        self.velocity
    }
}

/// The name of the velocity's group in burn's record.
const MOMENTUM: &str = "momentum";
const VELOCITY: &str = "velocity";

/// Settings of momentum.
#[derive(Clone, Copy, Debug)]
struct Momentum {
    /// The factor of the velocity.
    factor: f32,
    /// The factor of the gradient: 1 minus the dampening.
    share: f64,
    nesterov: bool,
}

impl From<SgdConfig> for FusedSgd {
    /// burn's settings. A number that is not finite becomes NaN.
    fn from(config: SgdConfig) -> Self {
        let settings = Settings::of(&config);
        let momentum = settings.group("momentum").map(|momentum| Momentum {
            factor: momentum.number("momentum") as f32,
            share: 1.0 - momentum.number("dampening"),
            nesterov: momentum.flag("nesterov"),
        });
        Self { penalty: settings.group("weight_decay").map(|decay| decay.number("penalty") as f32), momentum }
    }
}

impl Optimizer for FusedSgd {
    type State<const D: usize> = FusedSgdState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let velocity = state.and_then(|state| state.velocity);
        let inputs: Vec<&Tensor<D>> = velocity.iter().chain([&grad]).collect();
        if !is_fused(&tensor, &inputs) {
            return self.step_by_operations(lr, tensor, scaled(grad), velocity);
        }
        let sgd = SgdRule { penalty: self.penalty, rate: lr as f32 };
        let Some(momentum) = self.momentum else {
            let [tensor] = update(sgd, [tensor], grad);
            return (tensor, Some(FusedSgdState { velocity }));
        };
        // The first velocity is the gradient. A sum with -0 has the bits of the other number.
        let (share, velocity) = match velocity {
            Some(velocity) => (momentum.share as f32, velocity),
            None => (1.0, grad.full_like(-0.0)),
        };
        let rule = MomentumRule { sgd, factor: momentum.factor, share, nesterov: momentum.nesterov };
        let [tensor, velocity] = update(rule, [tensor, velocity], grad);
        (tensor, Some(FusedSgdState { velocity: Some(velocity) }))
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
        FusedSgdState { velocity: state.velocity.map(|velocity| velocity.to_device(device)) }
    }
}

impl FusedSgd {
    /// The step in burn's operations. burn's own optimizer cannot take the state, since the velocity in it is private.
    fn step_by_operations<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        gradient: Tensor<D>,
        velocity: Option<Tensor<D>>,
    ) -> (Tensor<D>, Option<FusedSgdState<D>>) {
        let gradient = match self.penalty {
            Some(penalty) => tensor.clone().mul_scalar(penalty).add(gradient),
            None => gradient,
        };
        let (delta, velocity) = match self.momentum {
            Some(Momentum { factor, share, nesterov }) => {
                let velocity = match velocity {
                    Some(velocity) => gradient.clone().mul_scalar(share).add(velocity.mul_scalar(factor)),
                    None => gradient.clone(),
                };
                let ahead = || velocity.clone().mul_scalar(factor).add(gradient);
                (if nesterov { ahead() } else { velocity.clone() }, Some(velocity))
            }
            None => (gradient, velocity),
        };
        (tensor - delta.mul_scalar(lr), Some(FusedSgdState { velocity }))
    }
}

impl<const D: usize> RecordState for FusedSgdState<D> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        if let Some(velocity) = &self.velocity {
            out.push_tensor(&join_path(prefix, MOMENTUM), VELOCITY, velocity.to_data());
        }
    }

    fn state_unflatten(prefix: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        let data = source.take_tensor(&join_path(prefix, MOMENTUM), VELOCITY);
        let velocity = data.map(|data| {
            let dtype = data.dtype();
            Tensor::from_data(data, (device, dtype))
        });
        Some(Self { velocity })
    }
}
