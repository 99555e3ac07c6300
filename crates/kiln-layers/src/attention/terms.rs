//! The masks, the dropout and the settings of a call of attention.

use std::sync::Arc;

use burn::backend::tensor::{BoolTensor, FloatTensor, IntTensor};
use burn::backend::{Backend, Dispatch, DispatchTensor, TensorMetadata};
use kiln_operations::KernelBackend;

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
    /// How many of the newest keys a query sees, if not all up to its own position.
    pub(crate) window: Option<usize>,
    pub(crate) key_lengths: Option<Arc<[usize]>>,
    pub(crate) scale: f32,
    /// The probability that a weight is dropped.
    pub(crate) dropout: f64,
    /// The number of the first sample in its batch: the dropped weights depend on the number of a sample.
    pub(crate) first_sample: usize,
}

/// A call's boolean mask, its dropout seed, which it has if the dropout is not 0, and its settings.
#[derive(Clone, Debug)]
pub(crate) struct Terms<B: Backend> {
    pub(super) masked: Option<BoolTensor<B>>,
    pub(super) seed: Option<IntTensor<B>>,
    pub(super) settings: Settings,
}

impl Terms<Dispatch> {
    /// Whether all heads have the same mask, and no weight is dropped by the number of its head.
    pub(crate) fn are_of_all_heads(&self) -> bool {
        self.seed.is_none() && self.masked.as_ref().is_none_or(|masked| masked.shape()[1] == 1)
    }

    /// The settings, and the boolean mask and the dropout seed as the last inputs of an operation.
    pub(crate) fn into_inputs(self) -> (Settings, impl Iterator<Item = DispatchTensor>) {
        (self.settings, self.masked.into_iter().chain(self.seed))
    }
}

impl<B: KernelBackend> Terms<B> {
    /// The terms from the last inputs of an operation.
    pub(super) fn of(settings: Settings, mut masks: Vec<FloatTensor<B>>) -> Self {
        let seed = if settings.dropout > 0.0 { masks.pop().map(B::int) } else { None };
        Self { masked: masks.pop().map(B::bool), seed, settings }
    }
}
