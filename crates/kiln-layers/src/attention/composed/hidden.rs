//! The pairs of query and key that are hidden, and the weights that are dropped, for a block of queries.

use std::ops::Range;

use burn::backend::tensor::{BoolTensor, Device, IntTensor};
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{IntDType, Shape, Slice, TensorData};

use super::super::terms::{Sizes, Terms};
use crate::composed::{Wide, bools, mixed, word};

/// Samples, queries and keys that are computed together.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) samples: Range<usize>,
    pub(super) queries: Range<usize>,
    /// The keys that any of the queries may see by its position.
    pub(super) keys: Range<usize>,
}

/// The numbers of a range, as a tensor along one of four dimensions.
fn numbers<B: Backend>(range: Range<usize>, dim: usize, device: &Device<B>) -> IntTensor<B> {
    let mut shape = [1; 4];
    shape[dim] = range.len();
    let numbers = B::int_arange(range.start as i64..range.end as i64, device, IntDType::I64);
    B::int_reshape(numbers, Shape::new(shape))
}

/// Sets the scores of hidden pairs in `scores`, `[samples, heads, queries, keys]`, to -inf.
pub(super) fn hide<B: Backend>(mut scores: Wide<B>, block: &Block, sizes: Sizes, terms: &Terms<B>) -> Wide<B> {
    let (device, settings) = (scores.device(), &terms.settings);
    let dtype = bools::<B>(&device);
    let keys = || numbers::<B>(block.keys.clone(), 3, &device);
    if settings.causal {
        // Query i sees key j if j + time <= i + keys.
        let all = Shape::new([1, 1, block.queries.len(), block.keys.len()]);
        let of_keys = B::int_expand(B::int_add_scalar(keys(), (sizes.time as i64).into()), all.clone());
        let of_queries = numbers::<B>(block.queries.start + sizes.keys..block.queries.end + sizes.keys, 2, &device);
        let of_queries = B::int_expand(of_queries, all);
        if let Some(window) = settings.window {
            // It sees the newest keys of these.
            let of_keys = B::int_add_scalar(of_keys.clone(), (window as i64).into());
            let passed = B::int_lower_equal(of_keys, of_queries.clone(), dtype);
            scores = scores.fill(passed, f32::NEG_INFINITY);
        }
        let later = B::int_greater(of_keys, of_queries, dtype);
        scores = scores.fill(later, f32::NEG_INFINITY);
    }
    if let Some(lengths) = &settings.key_lengths {
        let lengths: Vec<i64> = lengths[block.samples.clone()].iter().map(|length| *length as i64).collect();
        let all = Shape::new([lengths.len(), 1, 1, block.keys.len()]);
        let shape = [lengths.len(), 1, 1, 1];
        let lengths = B::int_from_data(TensorData::new(lengths, shape), &device);
        let padding = B::int_greater_equal(B::int_expand(keys(), all.clone()), B::int_expand(lengths, all), dtype);
        scores = scores.fill(padding, f32::NEG_INFINITY);
    }
    if let Some(pairs) = &terms.masked {
        let shape = pairs.shape();
        let ranges = [block.samples.clone(), 0..sizes.heads, block.queries.clone(), block.keys.clone()];
        // A mask dimension of length 1 is for all indices.
        let ranges =
            ranges.into_iter().zip(shape.iter()).map(|(range, length)| if *length == 1 { 0..1 } else { range });
        let pairs = B::bool_slice(pairs.clone(), &ranges.map(Slice::from).collect::<Vec<_>>());
        scores = scores.fill(pairs, f32::NEG_INFINITY);
    }
    scores
}

/// A mask of the weights that are dropped, `[samples, heads, queries, keys]`. It depends only on seed, sample, head, query and key.
pub(super) fn dropped<B: Backend>(block: &Block, sizes: Sizes, terms: &Terms<B>) -> Option<BoolTensor<B>> {
    let seed = terms.seed.as_ref()?;
    let device = seed.device();
    let seed = B::int_reshape(B::int_cast(seed.clone(), IntDType::I64), Shape::new([1; 4]));
    let high = word::<B>(B::bitwise_right_shift_scalar(seed.clone(), 32i64.into()));
    let seed = mixed::<B>(B::bitwise_xor(mixed::<B>(word::<B>(seed)), high));
    let next = |numbers: IntTensor<B>, before: IntTensor<B>| mixed::<B>(word::<B>(B::int_add(numbers, before)));
    let head = |sample: usize| (terms.settings.first_sample + sample) * sizes.heads;
    let heads = numbers::<B>(head(block.samples.start)..head(block.samples.end), 0, &device);
    let heads = B::int_reshape(heads, Shape::new([block.samples.len(), sizes.heads, 1, 1]));
    let rows = next(numbers::<B>(block.queries.clone(), 2, &device), next(heads, seed));
    let columns = mixed::<B>(numbers::<B>(block.keys.start + 1..block.keys.end + 1, 3, &device));
    let threshold = (terms.settings.dropout * 2f64.powi(32)) as i64;
    Some(B::int_lower_elem(mixed::<B>(B::bitwise_xor(rows, columns)), threshold.into(), bools::<B>(&device)))
}
