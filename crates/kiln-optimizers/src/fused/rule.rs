//! The arithmetic of the updates: burn's, operation by operation, so that results have the same bits.
//!
//! Products and sums are rounded one by one; none is fused into a multiply-add.

use kiln_operations::{Cost, simd};

/// A rule that changes a parameter and its `N` - 1 state tensors in a step, from the gradient.
pub(super) trait Rule<const N: usize>: Copy + Send + Sync {
    /// The cost of the recorded operation, whose inputs are parameter, state and gradient.
    const COST: &'static Cost;

    /// The rule with its name.
    #[cfg(feature = "cube")]
    fn any(self) -> AnyRule;

    /// Changes corresponding values of parameter and state. The gradient is multiplied by `factor` first.
    fn apply(self, values: [&mut [f32]; N], gradient: &[f32], factor: f32);
}

/// One of the rules.
#[cfg(feature = "cube")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum AnyRule {
    AdamW(AdamWRule),
    Adam(AdamRule),
    Sgd(SgdRule),
    Momentum(MomentumRule),
}

#[cfg(feature = "cube")]
impl AnyRule {
    /// The number of state tensors of a parameter.
    pub(super) fn states(self) -> usize {
        match self {
            Self::AdamW(_) | Self::Adam(_) => 2,
            Self::Momentum(_) => 1,
            Self::Sgd(_) => 0,
        }
    }

    /// The factor of the parameter that is added to the gradient.
    pub(super) fn penalty(self) -> Option<f32> {
        match self {
            Self::AdamW(_) => None,
            Self::Adam(rule) => rule.penalty,
            Self::Sgd(rule) => rule.penalty,
            Self::Momentum(rule) => rule.sgd.penalty,
        }
    }
}

/// The running means of Adam.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Betas {
    pub(crate) first: f32,
    pub(crate) second: f32,
}

impl Betas {
    /// The means after one more gradient.
    #[inline(always)]
    pub(crate) fn next(self, gradient: f32, first: f32, second: f32) -> (f32, f32) {
        (
            first * self.first + gradient * (1.0 - self.first),
            second * self.second + gradient * gradient * (1.0 - self.second),
        )
    }

    /// The corrections of both means for their start at zero, at step `time`, which counts from 1.
    pub(crate) fn corrections(self, time: i32) -> (f32, f32) {
        (1.0 - self.first.powi(time), 1.0 - self.second.powi(time))
    }
}

/// A step of AdamW, on parameter, first and second moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct AdamWRule {
    pub(super) betas: Betas,
    pub(super) corrections: (f32, f32),
    pub(super) epsilon: f32,
    /// The factor of the parameter after weight decay: 1 without decay.
    pub(super) keep: f32,
    pub(super) rate: f32,
}

impl Rule<3> for AdamWRule {
    const COST: &'static Cost = &Cost { in_place: &[(0, 0), (1, 1), (2, 2)], ..Cost::new("kiln::adamw_update") };

    #[cfg(feature = "cube")]
    fn any(self) -> AnyRule {
        AnyRule::AdamW(self)
    }

    fn apply(self, [parameter, first, second]: [&mut [f32]; 3], gradient: &[f32], factor: f32) {
        adamw(parameter, first, second, gradient, factor, self);
    }
}

simd! { fn adamw(parameter: &mut [f32], first: &mut [f32], second: &mut [f32], gradient: &[f32], factor: f32, rule: AdamWRule) {
    for (((p, m), v), g) in parameter.iter_mut().zip(first).zip(second).zip(gradient) {
        (*m, *v) = rule.betas.next(*g * factor, *m, *v);
        let delta = *m / rule.corrections.0 / ((*v / rule.corrections.1).sqrt() + rule.epsilon);
        *p = *p * rule.keep - delta * rule.rate;
    }
}}

/// A step of Adam, on parameter, first and second moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct AdamRule {
    pub(super) betas: Betas,
    /// Both corrections, as one factor of the first moment.
    pub(super) correction: f32,
    /// Epsilon with the correction of the second moment.
    pub(super) epsilon: f32,
    /// The factor of the parameter that is added to the gradient.
    pub(super) penalty: Option<f32>,
    pub(super) rate: f32,
}

impl Rule<3> for AdamRule {
    const COST: &'static Cost = &Cost { in_place: &[(0, 0), (1, 1), (2, 2)], ..Cost::new("kiln::adam_update") };

    #[cfg(feature = "cube")]
    fn any(self) -> AnyRule {
        AnyRule::Adam(self)
    }

    fn apply(self, [parameter, first, second]: [&mut [f32]; 3], gradient: &[f32], factor: f32) {
        adam(parameter, first, second, gradient, factor, self);
    }
}

simd! { fn adam(parameter: &mut [f32], first: &mut [f32], second: &mut [f32], gradient: &[f32], factor: f32, rule: AdamRule) {
    for (((p, m), v), g) in parameter.iter_mut().zip(first).zip(second).zip(gradient) {
        (*m, *v) = rule.betas.next(penalized(*g * factor, *p, rule.penalty), *m, *v);
        let delta = *m * rule.correction / (v.sqrt() + rule.epsilon);
        *p -= delta * rule.rate;
    }
}}

/// A step of SGD without momentum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SgdRule {
    /// The factor of the parameter that is added to the gradient.
    pub(super) penalty: Option<f32>,
    pub(super) rate: f32,
}

impl Rule<1> for SgdRule {
    const COST: &'static Cost = &Cost { in_place: &[(0, 0)], ..Cost::new("kiln::sgd_update") };

    #[cfg(feature = "cube")]
    fn any(self) -> AnyRule {
        AnyRule::Sgd(self)
    }

    fn apply(self, [parameter]: [&mut [f32]; 1], gradient: &[f32], factor: f32) {
        sgd(parameter, gradient, factor, self);
    }
}

simd! { fn sgd(parameter: &mut [f32], gradient: &[f32], factor: f32, rule: SgdRule) {
    for (p, g) in parameter.iter_mut().zip(gradient) {
        *p -= penalized(*g * factor, *p, rule.penalty) * rule.rate;
    }
}}

/// A step of SGD with momentum, on parameter and velocity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct MomentumRule {
    pub(super) sgd: SgdRule,
    /// The factor of the velocity.
    pub(super) factor: f32,
    /// The factor of the gradient.
    pub(super) share: f32,
    pub(super) nesterov: bool,
}

impl Rule<2> for MomentumRule {
    const COST: &'static Cost = &Cost { in_place: &[(0, 0), (1, 1)], ..Cost::new("kiln::momentum_update") };

    #[cfg(feature = "cube")]
    fn any(self) -> AnyRule {
        AnyRule::Momentum(self)
    }

    fn apply(self, [parameter, velocity]: [&mut [f32]; 2], gradient: &[f32], factor: f32) {
        momentum(parameter, velocity, gradient, factor, self);
    }
}

simd! { fn momentum(parameter: &mut [f32], velocity: &mut [f32], gradient: &[f32], factor: f32, rule: MomentumRule) {
    for ((p, v), g) in parameter.iter_mut().zip(velocity).zip(gradient) {
        let g = penalized(*g * factor, *p, rule.sgd.penalty);
        *v = g * rule.share + *v * rule.factor;
        let delta = if rule.nesterov { *v * rule.factor + g } else { *v };
        *p -= delta * rule.sgd.rate;
    }
}}

/// The gradient of a loss with an L2 penalty.
#[inline(always)]
fn penalized(gradient: f32, parameter: f32, penalty: Option<f32>) -> f32 {
    match penalty {
        Some(penalty) => parameter * penalty + gradient,
        None => gradient,
    }
}
