//! Builds the optimizers that settings name.

use std::sync::Arc;

use burn::module::{Module, ParamGroup};
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdafactorConfig, AdamWConfig, AdjustLrFn, LionConfig, MuonConfig, Optimizer, SgdConfig};
use kiln_optimizers::{
    AdamW4bit, AdamW8bit, Elementwise, FusedAdamW, FusedSgd, Offloaded, Sgd8bit, StateFormat, StochasticBf16,
};

use super::config::OptimizerConfig;
use super::groups::{NOISE, OneOptimizer, OptimizerGroups, has_codes};
use super::parameters::Kinds;

/// Elements of a chunk of a parameter in bf16, or of one whose state comes from the host: 8 MiB of AdamW's state, which PCIe moves in less
/// than a millisecond.
const CHUNK: usize = 1 << 20;

/// Where an optimizer keeps its state.
#[derive(Clone, Copy, PartialEq)]
enum StateDevice {
    Device,
    Host,
}

impl OptimizerConfig {
    /// Builds the optimizers for `model` in two groups: parameters of one dimension have no weight decay, all others have it. SGD and
    /// AdamW are kiln-optimizers' versions of burn's, with the same results and records.
    ///
    /// Call [`check`](Self::check) first. If it would refuse the numbers, they are used as they are, with state in f32, and the run
    /// diverges.
    pub fn groups(&self, model: &impl Module) -> OptimizerGroups {
        self.groups_at(StateDevice::Device, model)
    }

    /// Builds the optimizers as [`groups`](Self::groups) does, with their state in host memory ([`Offloaded`]). Numbers and records are
    /// those of `groups`.
    pub fn offloaded_groups(&self, model: &impl Module) -> OptimizerGroups {
        self.groups_at(StateDevice::Host, model)
    }

    fn groups_at(&self, state: StateDevice, model: &impl Module) -> OptimizerGroups {
        let kinds = Kinds::of(model);
        let spared = ParamGroup::from_ids(kinds.one_dimensional);
        let groups = match self {
            Self::Muon { momentum, weight_decay } => {
                let other = Self::adamw().with_weight_decay(*weight_decay);
                vec![
                    (ParamGroup::all(), state.whole(muon(*momentum, *weight_decay))),
                    (ParamGroup::from_ids(kinds.no_matrices), other.part(state, true)),
                    (spared, other.part(state, false)),
                ]
            }
            _ => vec![(ParamGroup::all(), self.part(state, true)), (spared, self.part(state, false))],
        };
        let scales = match self {
            Self::Sgd { .. } | Self::AdamW { .. } => true,
            Self::Sgd8bit { .. } | Self::AdamW8bit { .. } | Self::AdamW4bit { .. } => true,
            Self::Adafactor { .. } | Self::Lion { .. } | Self::Muon { .. } => false,
        };
        let scales = scales && state == StateDevice::Device;
        OptimizerGroups::of(groups, format!("{self:?}"), scales, self.elements_of_parts())
    }

    /// The elements of which each part of a parameter must have a multiple, if parts can be updated by themselves.
    fn elements_of_parts(&self) -> Option<usize> {
        let of = |format: Result<StateFormat, kiln_optimizers::Error>| format.map_or(1, |f| f.elements_of_parts());
        match self {
            Self::Sgd { .. } | Self::AdamW { .. } | Self::Lion { .. } => Some(1),
            Self::Sgd8bit { .. } => Some(of(Sgd8bit::new(&SgdConfig::new()).map(|optimizer| optimizer.format()))),
            Self::AdamW8bit { .. } => Some(of(AdamW8bit::new(&AdamWConfig::new()).map(|optimizer| optimizer.format()))),
            Self::AdamW4bit { .. } => Some(of(AdamW4bit::new(&AdamWConfig::new()).map(|optimizer| optimizer.format()))),
            Self::Adafactor { .. } | Self::Muon { .. } => None,
        }
    }

    /// The optimizer with or without weight decay.
    fn part(&self, state: StateDevice, decays: bool) -> OneOptimizer {
        let of = |weight_decay: f64| if decays { weight_decay } else { 0.0 };
        match *self {
            Self::Sgd { momentum, weight_decay, nesterov } => {
                state.by_chunks(FusedSgd::from(sgd(momentum, of(weight_decay), nesterov)))
            }
            Self::Sgd8bit { momentum, weight_decay, nesterov } => {
                let config = sgd(momentum, of(weight_decay), nesterov);
                state.or_f32(Sgd8bit::new(&config), FusedSgd::from(config))
            }
            Self::AdamW { beta1, beta2, epsilon, weight_decay } => {
                state.by_chunks(FusedAdamW::from(adamw([beta1, beta2], epsilon, of(weight_decay))))
            }
            Self::AdamW8bit { beta1, beta2, epsilon, weight_decay } => {
                let config = adamw([beta1, beta2], epsilon, of(weight_decay));
                state.or_f32(AdamW8bit::new(&config), FusedAdamW::from(config))
            }
            Self::AdamW4bit { beta1, beta2, epsilon, weight_decay } => {
                let config = adamw([beta1, beta2], epsilon, of(weight_decay));
                state.or_f32(AdamW4bit::new(&config), FusedAdamW::from(config))
            }
            Self::Adafactor { weight_decay } => {
                let config = AdafactorConfig::new().with_relative_step(false).with_scale_parameter(false);
                // burn panics for a negative or non-finite weight decay.
                let decay = Some(of(weight_decay)).filter(|decay| decay.is_finite() && *decay >= 0.0).unwrap_or(0.0);
                state.whole(config.with_weight_decay(decay as f32).build())
            }
            Self::Lion { beta1, beta2, weight_decay } => {
                let config = LionConfig::new().with_beta_1(beta1 as f32).with_beta_2(beta2 as f32);
                state.by_chunks(config.with_weight_decay(of(weight_decay) as f32).build())
            }
            Self::Muon { momentum, weight_decay } => state.whole(muon(momentum, of(weight_decay))),
        }
    }
}

impl StateDevice {
    /// An optimizer that needs whole parameters.
    fn whole<O: Optimizer>(self, optimizer: O) -> OneOptimizer {
        match self {
            Self::Device => OneOptimizer::whole(optimizer),
            Self::Host => OneOptimizer {
                plain: Arc::new(Offloaded::new(optimizer.clone())),
                rounding: Arc::new(Offloaded::new(StochasticBf16::new(optimizer, NOISE))),
                has_codes: has_codes::<O>(),
            },
        }
    }

    /// An optimizer that can update a parameter in chunks.
    fn by_chunks<O: Elementwise>(self, optimizer: O) -> OneOptimizer {
        /// In chunks also where it rounds.
        fn one<O: Elementwise>(optimizer: O) -> OneOptimizer {
            match StochasticBf16::by_chunks(optimizer.clone(), NOISE, CHUNK) {
                Ok(rounding) => {
                    OneOptimizer { plain: Arc::new(optimizer), rounding: Arc::new(rounding), has_codes: false }
                }
                Err(_) => OneOptimizer::whole(optimizer),
            }
        }
        match Offloaded::by_chunks(optimizer.clone(), CHUNK) {
            Ok(offloaded) if self == Self::Host => one(offloaded),
            _ => one(optimizer),
        }
    }

    /// An optimizer with quantised state, which moves between device and host as a whole. If its settings are refused, `full`.
    fn or_f32<O: Optimizer, E>(self, quantized: Result<O, E>, full: impl Elementwise) -> OneOptimizer {
        match quantized {
            Ok(optimizer) => self.whole(optimizer),
            Err(_) => self.by_chunks(full),
        }
    }
}

fn sgd(momentum: f64, weight_decay: f64, nesterov: bool) -> SgdConfig {
    let momentum = MomentumConfig::new().with_momentum(momentum).with_dampening(0.0).with_nesterov(nesterov);
    let decay = (weight_decay != 0.0).then(|| WeightDecayConfig::new(weight_decay as f32));
    SgdConfig::new().with_momentum(Some(momentum)).with_weight_decay(decay)
}

fn adamw([beta1, beta2]: [f64; 2], epsilon: f64, weight_decay: f64) -> AdamWConfig {
    let config = AdamWConfig::new().with_beta_1(beta1 as f32).with_beta_2(beta2 as f32);
    config.with_epsilon(epsilon as f32).with_weight_decay(weight_decay as f32)
}

fn muon(momentum: f64, weight_decay: f64) -> burn::optim::Muon {
    let momentum = MomentumConfig::new().with_momentum(momentum).with_dampening(0.0).with_nesterov(true);
    let decay = (weight_decay != 0.0).then(|| WeightDecayConfig::new(weight_decay as f32));
    let config = MuonConfig::new().with_momentum(momentum).with_weight_decay(decay);
    config.with_adjust_lr_fn(AdjustLrFn::MatchRmsAdamW).build()
}
