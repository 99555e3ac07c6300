//! Builds the optimizers that settings name.

use burn::module::{Module, ParamGroup};
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdafactorConfig, AdamWConfig, AdjustLrFn, LionConfig, MuonConfig, Optimizer, SgdConfig,
};
use kiln_optimizers::{AdamW4bit, AdamW8bit, FusedAdamW, FusedSgd, Sgd8bit};

use super::config::OptimizerConfig;
use super::groups::OptimizerGroups;
use super::parameters::Kinds;

impl OptimizerConfig {
    /// The optimizers for `model`, in two groups: with weight decay, and without it for parameters of one dimension. SGD and AdamW are
    /// kiln-optimizers' forms of burn's, with the same results and records.
    ///
    /// Call [`check`](Self::check) before. Numbers that it refuses are used as they are, with state in f32, and end the first step with
    /// [`Error::NotFinite`](crate::Error::NotFinite) or diverge.
    pub fn groups(&self, model: &impl Module) -> OptimizerGroups {
        let kinds = Kinds::of(model);
        let spared = ParamGroup::from_ids(kinds.one_dimensional);
        let groups = match *self {
            Self::Sgd { momentum, weight_decay, nesterov } => {
                two(spared, weight_decay, |decay| FusedSgd::from(sgd(momentum, decay, nesterov)))
            }
            Self::Sgd8bit { momentum, weight_decay, nesterov } => {
                let config = |decay| sgd(momentum, decay, nesterov);
                try_two(&spared, weight_decay, |decay| Sgd8bit::new(&config(decay)))
                    .unwrap_or_else(|| two(spared, weight_decay, |decay| FusedSgd::from(config(decay))))
            }
            Self::AdamW { beta1, beta2, epsilon, weight_decay } => {
                two(spared, weight_decay, |decay| FusedAdamW::from(adamw([beta1, beta2], epsilon, decay)))
            }
            Self::AdamW8bit { beta1, beta2, epsilon, weight_decay } => {
                let config = |decay| adamw([beta1, beta2], epsilon, decay);
                try_two(&spared, weight_decay, |decay| AdamW8bit::new(&config(decay)))
                    .unwrap_or_else(|| two(spared, weight_decay, |decay| FusedAdamW::from(config(decay))))
            }
            Self::AdamW4bit { beta1, beta2, epsilon, weight_decay } => {
                let config = |decay| adamw([beta1, beta2], epsilon, decay);
                try_two(&spared, weight_decay, |decay| AdamW4bit::new(&config(decay)))
                    .unwrap_or_else(|| two(spared, weight_decay, |decay| FusedAdamW::from(config(decay))))
            }
            Self::Adafactor { weight_decay } => two(spared, weight_decay, |decay| {
                let config = AdafactorConfig::new().with_relative_step(false).with_scale_parameter(false);
                config.with_weight_decay(decay as f32).build()
            }),
            Self::Lion { beta1, beta2, weight_decay } => two(spared, weight_decay, |decay| {
                let config = LionConfig::new().with_beta_1(beta1 as f32).with_beta_2(beta2 as f32);
                config.with_weight_decay(decay as f32).build()
            }),
            Self::Muon { momentum, weight_decay } => {
                let momentum =
                    MomentumConfig::new().with_momentum(momentum).with_dampening(0.0).with_nesterov(true);
                let muon = MuonConfig::new()
                    .with_momentum(momentum)
                    .with_weight_decay(Some(WeightDecayConfig::new(weight_decay as f32)))
                    .with_adjust_lr_fn(AdjustLrFn::MatchRmsAdamW);
                let other = |decay| FusedAdamW::from(adamw([0.9, 0.95], 1e-8, decay));
                OptimizerGroups::from(muon.build())
                    .with_group(ParamGroup::from_ids(kinds.no_matrices), other(weight_decay))
                    .with_group(spared, other(0.0))
            }
        };
        groups.described(format!("{self:?}"))
    }
}

/// An optimizer with weight decay, and without it for the group that is spared.
fn two<O: Optimizer>(spared: ParamGroup, weight_decay: f64, make: impl Fn(f64) -> O) -> OptimizerGroups {
    OptimizerGroups::from(make(weight_decay)).with_group(spared, make(0.0))
}

/// The same with settings that may be refused.
fn try_two<O: Optimizer, E>(
    spared: &ParamGroup,
    weight_decay: f64,
    make: impl Fn(f64) -> Result<O, E>,
) -> Option<OptimizerGroups> {
    let (decays, spares) = (make(weight_decay).ok()?, make(0.0).ok()?);
    Some(OptimizerGroups::from(decays).with_group(spared.clone(), spares))
}

fn sgd(momentum: f64, weight_decay: f64, nesterov: bool) -> SgdConfig {
    let momentum = MomentumConfig::new().with_momentum(momentum).with_dampening(0.0).with_nesterov(nesterov);
    let decay = (weight_decay > 0.0).then(|| WeightDecayConfig::new(weight_decay as f32));
    SgdConfig::new().with_momentum(Some(momentum)).with_weight_decay(decay)
}

fn adamw([beta1, beta2]: [f64; 2], epsilon: f64, weight_decay: f64) -> AdamWConfig {
    let config = AdamWConfig::new().with_beta_1(beta1 as f32).with_beta_2(beta2 as f32);
    config.with_epsilon(epsilon as f32).with_weight_decay(weight_decay as f32)
}
