//! The optimizer of a run: any of burn's, with parameter groups; SGD and AdamW as settings.

use std::sync::Arc;

use burn::module::{Module, ModuleVisitor, Param, ParamGroup, ParamId};
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamWConfig, DynOptimizer, DynState, ModuleOptimizer, Optimizer, SgdConfig};
use burn::optim::{StateSink, StateSource};
use burn::tensor::kind::BridgeTensor;
use burn::tensor::{Device, Tensor};
use kiln_optimizers::{FusedAdamW, FusedSgd};
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// One of burn's optimizers for all parameters, and others for groups of them.
///
/// Every optimizer of burn becomes one by itself: `AdamWConfig::new().build()`. Kiln takes the optimizers and not burn's
/// `ModuleOptimizer`, because it also records their update to predict its memory.
///
/// ```
/// use burn::module::ParamGroup;
/// use burn::optim::{AdamWConfig, SgdConfig};
/// use kiln_training::OptimizerGroups;
///
/// let groups = OptimizerGroups::from(AdamWConfig::new().build())
///     .with_group(ParamGroup::from_predicate("head"), SgdConfig::new().build());
/// ```
#[derive(Clone)]
pub struct OptimizerGroups {
    groups: Vec<(ParamGroup, Arc<dyn DynOptimizer>)>,
    description: Option<String>,
}

impl<O: Optimizer> From<O> for OptimizerGroups {
    fn from(optimizer: O) -> Self {
        let description = Some(std::any::type_name::<O>().to_owned());
        Self { groups: vec![(ParamGroup::all(), Arc::new(optimizer))], description }
    }
}

impl OptimizerGroups {
    /// Uses `optimizer` for the parameters of `group`. A parameter in several groups belongs to the one that was added last.
    #[must_use]
    pub fn with_group<O: Optimizer>(mut self, group: ParamGroup, optimizer: O) -> Self {
        self.groups.push((group, Arc::new(optimizer)));
        let description = self.description.take();
        self.description = description.map(|text| format!("{text}, {}", std::any::type_name::<O>()));
        self
    }

    /// Names the settings. A checkpoint notes the text, and a run with another text does not resume from it.
    #[must_use]
    pub fn described(self, settings: impl Into<String>) -> Self {
        Self { description: Some(settings.into()), ..self }
    }

    pub(crate) fn description(&self) -> Option<&str> {
        self.description.as_deref()
    }

    /// The groups, the first of which has all parameters.
    pub(crate) fn groups(&self) -> &[(ParamGroup, Arc<dyn DynOptimizer>)] {
        &self.groups
    }

    /// burn's optimizer of a whole module, without state.
    pub fn init(&self) -> ModuleOptimizer {
        self.init_on(None)
    }

    /// As [`init`](Self::init). State that is loaded later goes to `device`, where burn takes the default device.
    pub(crate) fn init_on(&self, device: Option<&Device>) -> ModuleOptimizer {
        // burn wants a concrete optimizer to begin with; the first group covers all of its parameters.
        let start = ModuleOptimizer::from(SgdConfig::new().build());
        self.groups.iter().fold(start, |all, (group, optimizer)| {
            let shared = Shared { optimizer: optimizer.clone(), device: device.cloned() };
            all.with_group(group.clone(), shared, None)
        })
    }
}

/// An optimizer behind a pointer, as an optimizer.
struct Shared {
    optimizer: Arc<dyn DynOptimizer>,
    /// Where loaded state goes.
    device: Option<Device>,
}

impl DynOptimizer for Shared {
    fn step_dyn(
        &self,
        rank: usize,
        lr: f64,
        tensor: BridgeTensor,
        grad: BridgeTensor,
        state: Option<DynState>,
    ) -> (BridgeTensor, Option<DynState>) {
        self.optimizer.step_dyn(rank, lr, tensor, grad, state)
    }

    fn to_device_dyn(&self, state: DynState, device: &Device) -> DynState {
        self.optimizer.to_device_dyn(state, device)
    }

    fn state_flatten(&self, prefix: &str, state: &DynState, out: &mut StateSink) {
        self.optimizer.state_flatten(prefix, state, out);
    }

    fn state_unflatten(
        &self,
        rank: usize,
        prefix: &str,
        source: &mut StateSource,
        device: &Device,
    ) -> Option<DynState> {
        self.optimizer.state_unflatten(rank, prefix, source, self.device.as_ref().unwrap_or(device))
    }
}

/// SGD or AdamW as settings to be kept in a file. Weight decay spares parameters of one dimension: norms and
/// biases (Goyal et al. 2017, section 5.3, and nanoGPT).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum OptimizerConfig {
    /// Stochastic gradient descent with momentum, as torch's `SGD` with no dampening.
    Sgd {
        /// Factor of the running gradient, in [0, 1).
        momentum: f64,
        /// Factor of the weights that is added to the gradient, at least 0.
        weight_decay: f64,
        /// Look ahead along the momentum.
        nesterov: bool,
    },
    /// Adam with decoupled weight decay (Loshchilov and Hutter 2019).
    AdamW {
        /// Decay of the first moment, in [0, 1).
        beta1: f64,
        /// Decay of the second moment, in [0, 1).
        beta2: f64,
        /// Added to the denominator, above 0.
        epsilon: f64,
        /// Fraction of the weights taken off per unit of learning rate, at least 0.
        weight_decay: f64,
    },
}

impl OptimizerConfig {
    /// SGD with Nesterov momentum 0.9 and weight decay 5e-4.
    pub fn sgd() -> Self {
        Self::Sgd { momentum: 0.9, weight_decay: 5e-4, nesterov: true }
    }

    /// AdamW with nanoGPT's figures: betas 0.9 and 0.95, weight decay 0.1.
    pub fn adamw() -> Self {
        Self::AdamW { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 }
    }

    /// Checks the numbers.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`].
    pub fn check(&self) -> Result<(), Error> {
        let fraction = |field, value: f64| match (0.0..1.0).contains(&value) {
            true => Ok(()),
            false => Err(Error::InvalidSetting { field, value: value.to_string(), expected: "a number in [0, 1)" }),
        };
        let positive =
            |field, value: f64, above: bool| match value.is_finite() && value >= 0.0 && (value > 0.0 || !above) {
                true => Ok(()),
                false => Err(Error::InvalidSetting { field, value: value.to_string(), expected: "a positive number" }),
            };
        match *self {
            Self::Sgd { momentum, weight_decay, .. } => {
                fraction("momentum", momentum).and(positive("weight decay", weight_decay, false))
            }
            Self::AdamW { beta1, beta2, epsilon, weight_decay } => fraction("beta1", beta1)
                .and(fraction("beta2", beta2))
                .and(positive("epsilon", epsilon, true))
                .and(positive("weight decay", weight_decay, false)),
        }
    }

    /// The optimizers for `model`, kiln-optimizers' form of burn's with the same results and records, in two groups: with weight decay, and
    /// without it for parameters of one dimension.
    pub fn groups(&self, model: &impl Module) -> OptimizerGroups {
        let one_dimensional = ParamGroup::from_ids(one_dimensional(model));
        let groups = match *self {
            Self::Sgd { .. } => {
                OptimizerGroups::from(self.build_sgd(true)).with_group(one_dimensional, self.build_sgd(false))
            }
            Self::AdamW { .. } => {
                OptimizerGroups::from(self.build_adamw(true)).with_group(one_dimensional, self.build_adamw(false))
            }
        };
        groups.described(format!("{self:?}"))
    }

    fn build_sgd(&self, decays: bool) -> FusedSgd {
        let (momentum, weight_decay, nesterov) = match *self {
            Self::Sgd { momentum, weight_decay, nesterov } => (momentum, weight_decay, nesterov),
            Self::AdamW { .. } => (0.0, 0.0, false),
        };
        let momentum = MomentumConfig::new().with_momentum(momentum).with_dampening(0.0).with_nesterov(nesterov);
        let decay = decays.then(|| WeightDecayConfig::new(weight_decay as f32));
        SgdConfig::new().with_momentum(Some(momentum)).with_weight_decay(decay).into()
    }

    fn build_adamw(&self, decays: bool) -> FusedAdamW {
        let (beta1, beta2, epsilon, weight_decay) = match *self {
            Self::AdamW { beta1, beta2, epsilon, weight_decay } => (beta1, beta2, epsilon, weight_decay),
            Self::Sgd { .. } => (0.9, 0.999, 1e-8, 0.0),
        };
        let config =
            AdamWConfig::new().with_beta_1(beta1 as f32).with_beta_2(beta2 as f32).with_epsilon(epsilon as f32);
        config.with_weight_decay(if decays { weight_decay as f32 } else { 0.0 }).into()
    }
}

/// The float parameters with at most one dimension.
fn one_dimensional(model: &impl Module) -> Vec<ParamId> {
    struct Collect(Vec<ParamId>);
    impl ModuleVisitor for Collect {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if D <= 1 {
                self.0.push(param.id);
            }
        }
    }
    let mut collect = Collect(vec![]);
    model.visit(&mut collect);
    collect.0
}
