//! Adam and AdamW.

use burn::optim::{
    Adam, AdamConfig, AdamState, AdamW, AdamWConfig, AdamWState, AdaptiveMomentumState, LearningRate, Optimizer,
};
use burn::tensor::{Device, Tensor};

use super::rule::{AdamRule, AdamWRule, Betas, Rule};
use super::together::scaled;
use super::update::Settings;
use super::update::{is_fused, update};

/// burn's [`AdamW`] in one pass over parameter, gradient and moments on the CPU device (Loshchilov and Hutter 2019). torch calls such
/// an optimizer `fused`.
///
/// Settings, state, records and results equal burn's, to the bit: a run that was saved with one resumes with the other. A tensor is
/// updated in place if no other handle to it exists. A clone of the parameter that is held elsewhere keeps its values. Parameters must be
/// f32. burn's own implementation updates parameters of other dtypes and on other devices, and does AMSGrad and cautious weight decay.
///
/// Like burn's `build`, it leaves the configuration's gradient clipping to [`ModuleOptimizer`](burn::optim::ModuleOptimizer).
///
/// ```
/// use burn::nn::LinearConfig;
/// use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
/// use burn::tensor::{Device, Distribution, Tensor};
/// use kiln_optimizers::FusedAdamW;
///
/// let device = Device::flex().autodiff();
/// let mut model = LinearConfig::new(8, 4).init(&device);
/// let mut optimizer = ModuleOptimizer::from(FusedAdamW::from(AdamWConfig::new().with_weight_decay(0.1)));
///
/// let x = Tensor::<2>::random([16, 8], Distribution::Default, &device);
/// let gradients = GradientsParams::from_grads(model.forward(x).square().mean().backward(), &model);
/// model = optimizer.step(1e-3, model, gradients);
/// ```
#[derive(Clone)]
pub struct FusedAdamW {
    burn: AdamW,
    fused: bool,
    betas: Betas,
    epsilon: f32,
    weight_decay: f32,
}

impl From<AdamWConfig> for FusedAdamW {
    /// burn's settings. A number that is not finite becomes NaN.
    fn from(config: AdamWConfig) -> Self {
        let settings = Settings::of(&config);
        Self {
            burn: config.build(),
            fused: !settings.flag("amsgrad") && !settings.flag("cautious_weight_decay"),
            betas: betas(&settings),
            epsilon: settings.number("epsilon") as f32,
            weight_decay: settings.number("weight_decay") as f32,
        }
    }
}

impl Optimizer for FusedAdamW {
    type State<const D: usize> = AdamWState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        if !self.fused || !is_fused(&tensor, &inputs(&grad, state.as_ref().map(|state| &state.momentum))) {
            return self.burn.step(lr, tensor, scaled(grad), state);
        }
        let decay = lr * f64::from(self.weight_decay);
        let rule = |time| AdamWRule {
            betas: self.betas,
            corrections: self.betas.corrections(time),
            epsilon: self.epsilon,
            keep: (1.0 - decay) as f32,
            rate: lr as f32,
        };
        let (tensor, momentum) = step(rule, tensor, grad, state.map(|state| state.momentum));
        (tensor, Some(AdamWState::new(momentum)))
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
        AdamW::to_device(state, device)
    }
}

/// burn's [`Adam`] in one pass over parameter, gradient and moments on the CPU device (Kingma and Ba 2015). Results, memory and limits
/// are as described at [`FusedAdamW`].
#[derive(Clone)]
pub struct FusedAdam {
    burn: Adam,
    fused: bool,
    betas: Betas,
    epsilon: f32,
    penalty: Option<f32>,
}

impl From<AdamConfig> for FusedAdam {
    /// burn's settings. A number that is not finite becomes NaN.
    fn from(config: AdamConfig) -> Self {
        let settings = Settings::of(&config);
        Self {
            burn: config.build(),
            fused: !settings.flag("amsgrad"),
            betas: betas(&settings),
            epsilon: settings.number("epsilon") as f32,
            penalty: settings.group("weight_decay").map(|decay| decay.number("penalty") as f32),
        }
    }
}

impl Optimizer for FusedAdam {
    type State<const D: usize> = AdamState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        if !self.fused || !is_fused(&tensor, &inputs(&grad, state.as_ref().map(|state| &state.momentum))) {
            return self.burn.step(lr, tensor, scaled(grad), state);
        }
        let rule = |time| {
            let (first, second) = self.betas.corrections(time);
            let root = second.sqrt();
            AdamRule {
                betas: self.betas,
                correction: root / first,
                epsilon: self.epsilon * root,
                penalty: self.penalty,
                rate: lr as f32,
            }
        };
        let (tensor, momentum) = step(rule, tensor, grad, state.map(|state| state.momentum));
        (tensor, Some(AdamState::new(momentum)))
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
        Adam::to_device(state, device)
    }
}

fn betas(settings: &Settings) -> Betas {
    Betas { first: settings.number("beta_1") as f32, second: settings.number("beta_2") as f32 }
}

/// The tensors that a step reads besides the parameter.
fn inputs<'a, const D: usize>(
    gradient: &'a Tensor<D>,
    state: Option<&'a AdaptiveMomentumState<D>>,
) -> Vec<&'a Tensor<D>> {
    let moments = state.into_iter().flat_map(|state| [&state.moment_1, &state.moment_2]);
    moments.chain([gradient]).collect()
}

/// The parameter and the moments after a step. `rule` makes the rule of step `time`, which counts from 1.
fn step<R: Rule<3>, const D: usize>(
    rule: impl FnOnce(i32) -> R,
    parameter: Tensor<D>,
    gradient: Tensor<D>,
    state: Option<AdaptiveMomentumState<D>>,
) -> (Tensor<D>, AdaptiveMomentumState<D>) {
    // A sum with -0 has the bits of the other number, so the first step needs no special rule.
    let zeros = || gradient.full_like(-0.0);
    let mut state = state.unwrap_or_else(|| AdaptiveMomentumState::new(0, zeros(), zeros()));
    state.time += 1;
    let rule = rule(state.time as i32);
    let [parameter, moment_1, moment_2] = update(rule, [parameter, state.moment_1, state.moment_2], gradient);
    (parameter, AdaptiveMomentumState { moment_1, moment_2, ..state })
}
