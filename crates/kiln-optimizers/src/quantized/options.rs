//! Settings that the optimizers share.

use crate::blocks::{CodeBook, Noise};
use crate::fused::Betas;

/// The way in which an 8-bit optimizer keeps the second moment, the running mean of squared gradients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SecondMoment {
    /// By its root ([`CodeBook::Root`]). This is the default, since the update divides by the root.
    #[default]
    Root,
    /// By the map of bitsandbytes ([`CodeBook::DynamicUnsigned`]).
    Dynamic,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    /// Parameters with fewer elements keep state in f32.
    pub(super) min_elements: usize,
    pub(super) second: SecondMoment,
    /// The seed of stochastic rounding, if it is used.
    pub(super) seed: Option<u64>,
}

impl Default for Options {
    /// The settings of bitsandbytes and torchao: 4,096 elements, and the nearest code.
    fn default() -> Self {
        Self { min_elements: 4096, second: SecondMoment::default(), seed: None }
    }
}

impl Options {
    /// The code books of first and second moment.
    pub(super) fn books(&self, bits: u32) -> [CodeBook; 2] {
        match (bits, self.second) {
            (4, _) => [CodeBook::Dynamic4, CodeBook::Linear4],
            (_, SecondMoment::Root) => [CodeBook::Dynamic, CodeBook::Root],
            (_, SecondMoment::Dynamic) => [CodeBook::Dynamic, CodeBook::DynamicUnsigned],
        }
    }

    /// The noise of a step, if codes are rounded stochastically.
    pub(super) fn noise(&self, step: usize) -> Option<Noise> {
        self.seed.map(|seed| Noise::new(seed, step as u64))
    }
}

/// Implements the settings of an optimizer with a field `options`.
macro_rules! setters {
    () => {
        /// Keeps the state of parameters with fewer than `count` elements in f32. The default is 4,096.
        #[must_use]
        pub fn with_min_elements(mut self, count: usize) -> Self {
            self.options.min_elements = count;
            self
        }

        /// Rounds to one of the two codes around a value at random, so that the mean of the decoded numbers is the value. The noise
        /// depends only on `seed`, the number of the step and the index of the value: a run that resumes has the same bits. Without this
        /// setting, the nearest code is taken.
        #[must_use]
        pub fn with_stochastic_rounding(mut self, seed: u64) -> Self {
            self.options.seed = Some(seed);
            self
        }
    };
}
pub(super) use setters;

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
