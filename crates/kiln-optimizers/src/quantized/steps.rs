//! The numbers of a step that do not differ between elements.

use crate::fused::Betas;

/// A step of AdamW.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdamWRule {
    pub(super) betas: Betas,
    pub(super) epsilon: f32,
    /// The factor of the parameter after weight decay: 1 without decay.
    pub(super) keep: f32,
    /// The learning rate, with the correction of the first moment.
    pub(super) rate: f32,
    /// The factor of the second moment's root that corrects it.
    pub(super) root: f32,
}

/// A step of SGD with momentum.
#[derive(Clone, Copy, Debug)]
pub(super) struct MomentumRule {
    /// The factor of the parameter that is added to the gradient.
    pub(super) penalty: Option<f32>,
    /// The factor of the velocity.
    pub(super) factor: f32,
    /// The factor of the gradient.
    pub(super) share: f32,
    pub(super) nesterov: bool,
    pub(super) rate: f32,
}
