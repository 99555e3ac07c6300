//! Sizes of one call of attention, and the scores that it hides.

use burn::backend::flex::FlexTensor;
use burn::backend::{Flex, TensorMetadata};

use super::dropout::Dropout;
use super::grid::readable;
use crate::attention::terms::{Settings, Sizes, Terms};
use kiln_operations::simd;

/// Sizes, masks and dropout of one call.
pub(super) struct Call<'a> {
    pub(super) sizes: Sizes,
    pub(super) settings: &'a Settings,
    pub(super) dropout: Option<Dropout>,
    masked: Option<FlexTensor>,
}

impl<'a> Call<'a> {
    pub(super) fn new(sizes: Sizes, terms: &'a Terms<Flex>) -> Self {
        let settings = &terms.settings;
        let dropout = terms.seed.as_ref().map(|seed| Dropout::new(seed, settings.dropout));
        let masked = terms.masked.as_ref().map(readable);
        Self { sizes, settings, dropout, masked }
    }

    /// The number of a head for its dropped weights: heads are counted over all samples of the batch.
    pub(super) fn dropped_head(&self, sample: usize, head: usize) -> usize {
        (self.settings.first_sample + sample) * self.sizes.heads + head
    }

    /// The end of the keys that the first `queries` queries of a sample see.
    pub(super) fn last_key(&self, sample: usize, queries: usize) -> usize {
        let Sizes { time, keys, .. } = self.sizes;
        let limit = self.settings.key_lengths.as_ref().map_or(keys, |lengths| lengths[sample]);
        if self.settings.causal { (queries + keys).saturating_sub(time).min(limit) } else { limit }
    }

    /// The first key that a query sees by its position. Later queries see no earlier one.
    pub(super) fn first_key(&self, query: usize) -> usize {
        let Sizes { time, keys, .. } = self.sizes;
        self.settings.window.map_or(0, |window| (query + 1 + keys).saturating_sub(time + window))
    }

    /// For each query from `query` on, the end of the keys that it sees, counted from `key`, within a block of `keys` keys; 0 if it sees none of
    /// them. Scores that the window or the boolean mask hides are set to negative infinity.
    pub(super) fn hide(
        &self,
        [sample, head, query, key]: [usize; 4],
        (scores, stride, keys): (&mut [f32], usize, usize),
        seen: &mut [usize],
    ) {
        for (row, seen) in seen.iter_mut().enumerate() {
            *seen = self.last_key(sample, query + row + 1).saturating_sub(key).min(keys);
            let passed = self.first_key(query + row).saturating_sub(key).min(*seen);
            scores[row * stride..][..passed].fill(f32::NEG_INFINITY);
            *seen = if passed < *seen { *seen } else { 0 };
        }
        let Some(masked) = &self.masked else { return };
        let (layout, shape, values) = (masked.layout(), masked.shape(), masked.storage::<u8>());
        // A mask dimension of length 1 is for all indices.
        let step = |dimension: usize| match shape[dimension] {
            1 => 0,
            _ => layout.strides()[dimension].unsigned_abs(),
        };
        let first = layout.start_offset() + sample * step(0) + head * step(1) + key * step(3);
        for (row, (scores, seen)) in scores.chunks_exact_mut(stride).zip(seen).enumerate() {
            let hidden = &values[first + (query + row) * step(2)..];
            let passed = self.first_key(query + row).saturating_sub(key).min(*seen);
            let all = match step(3) {
                0 => hidden[0] != 0,
                _ => hide_row(&mut scores[passed..*seen], &hidden[passed..*seen]),
            };
            if all {
                *seen = 0;
            }
        }
    }
}

simd! {
/// Sets the hidden scores to negative infinity. Returns whether all are hidden.
fn hide_row(scores: &mut [f32], hidden: &[u8]) -> bool {
    let mut seen = 0;
    for (score, &hidden) in scores.iter_mut().zip(hidden) {
        *score = if hidden == 0 { *score } else { f32::NEG_INFINITY };
        seen |= u8::from(hidden == 0);
    }
    seen == 0
}}
