use burn::module::{Module, ModuleVisitor, Param, ParamGroup, ParamId};
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamW, AdamWConfig, ModuleOptimizer, Sgd, SgdConfig};
use burn::tensor::{Device, Tensor};
use kiln_memory::{Recorder, StepOptions, StepTrace, record_step};
use serde::{Deserialize, Serialize};

use crate::Error;

/// The optimizer of a run, one of burn's. Weight decay spares parameters of one dimension: norms and
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

    /// burn's optimizer for `model`, in two groups: with weight decay, and without it for parameters of
    /// one dimension.
    pub fn init(&self, model: &impl Module) -> ModuleOptimizer {
        let plain = ParamGroup::from_ids(one_dimensional(model));
        match *self {
            Self::Sgd { .. } => {
                ModuleOptimizer::from(self.build_sgd(true)).with_group(plain, self.build_sgd(false), None)
            }
            Self::AdamW { .. } => {
                ModuleOptimizer::from(self.build_adamw(true)).with_group(plain, self.build_adamw(false), None)
            }
        }
    }

    /// Records a step that ends with this optimizer; see [`kiln_memory::record_step`].
    pub(crate) fn record<M: Module + 'static>(
        &self,
        build: impl Fn(&Device) -> M,
        loss: impl Fn(&M, &Recorder) -> Tensor<1>,
        options: StepOptions,
    ) -> Result<StepTrace, kiln_memory::Error> {
        match self {
            Self::Sgd { .. } => record_step(build, loss, &self.build_sgd(true), options),
            Self::AdamW { .. } => record_step(build, loss, &self.build_adamw(true), options),
        }
    }

    fn build_sgd(&self, decays: bool) -> Sgd {
        let (momentum, weight_decay, nesterov) = match *self {
            Self::Sgd { momentum, weight_decay, nesterov } => (momentum, weight_decay, nesterov),
            Self::AdamW { .. } => (0.0, 0.0, false),
        };
        let momentum = MomentumConfig::new().with_momentum(momentum).with_dampening(0.0).with_nesterov(nesterov);
        let decay = decays.then(|| WeightDecayConfig::new(weight_decay as f32));
        SgdConfig::new().with_momentum(Some(momentum)).with_weight_decay(decay).build()
    }

    fn build_adamw(&self, decays: bool) -> AdamW {
        let (beta1, beta2, epsilon, weight_decay) = match *self {
            Self::AdamW { beta1, beta2, epsilon, weight_decay } => (beta1, beta2, epsilon, weight_decay),
            Self::Sgd { .. } => (0.9, 0.999, 1e-8, 0.0),
        };
        let config =
            AdamWConfig::new().with_beta_1(beta1 as f32).with_beta_2(beta2 as f32).with_epsilon(epsilon as f32);
        config.with_weight_decay(if decays { weight_decay as f32 } else { 0.0 }).build()
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
