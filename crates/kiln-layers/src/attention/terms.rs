//! The masks, the dropout and the settings of a call of attention.

use std::sync::Arc;

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::{BoolTensor, FloatTensor, IntTensor};
use burn::backend::{Autodiff, Backend, Capture, ExtensionType};

/// Sizes of one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) samples: usize,
    /// Heads of the queries, a multiple of the heads of keys and values.
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) time: usize,
    pub(crate) keys: usize,
    pub(crate) depth: usize,
}

/// The options that are not tensors.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Heads of the queries.
    pub(crate) heads: usize,
    pub(crate) causal: bool,
    pub(crate) key_lengths: Option<Arc<[usize]>>,
    pub(crate) scale: f32,
    /// The probability that a weight is dropped.
    pub(crate) dropout: f64,
}

/// A call's boolean mask.
#[derive(Clone, Debug, ExtensionType)]
pub(crate) enum Masked<B: Backend> {
    None,
    Pairs(BoolTensor<B>),
}

/// A call's dropout seed.
#[derive(Clone, Debug, ExtensionType)]
pub(crate) enum Seed<B: Backend> {
    None,
    Number(IntTensor<B>),
}

/// A call's boolean mask, dropout seed and settings.
#[derive(Clone, Debug, ExtensionType)]
pub(crate) struct Terms<B: Backend> {
    #[extension_type]
    pub(super) masked: Masked<B>,
    #[extension_type]
    pub(super) seed: Seed<B>,
    pub(super) settings: Settings,
}

impl<B: Backend, C: CheckpointStrategy> Terms<Autodiff<B, C>> {
    /// The terms for the backend without gradients.
    pub(crate) fn inner(self) -> Terms<B> {
        let masked = match self.masked {
            Masked::None => Masked::None,
            Masked::Pairs(pairs) => Masked::Pairs(pairs),
        };
        let seed = match self.seed {
            Seed::None => Seed::None,
            Seed::Number(number) => Seed::Number(number),
        };
        Terms { masked, seed, settings: self.settings }
    }
}

impl Terms<Capture> {
    /// The inputs of a recorded operation: `tensors`, then the boolean mask and the dropout seed if there are any.
    pub(super) fn with(&self, tensors: impl IntoIterator<Item = FloatTensor<Capture>>) -> Vec<FloatTensor<Capture>> {
        let masked = match &self.masked {
            Masked::None => None,
            Masked::Pairs(pairs) => Some(pairs.clone()),
        };
        let seed = match &self.seed {
            Seed::None => None,
            Seed::Number(number) => Some(number.clone()),
        };
        tensors.into_iter().chain(masked).chain(seed).collect()
    }

    /// The scalars of a recorded operation.
    pub(super) fn scalars(&self) -> [i64; 3] {
        [self.settings.heads as i64, self.settings.causal.into(), (self.settings.dropout > 0.0).into()]
    }
}
