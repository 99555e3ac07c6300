//! Exact attention in a backend's own operations, by blocks of queries with all keys that they see. The backward pass computes each
//! block's probabilities again from the saved sums.
//!
//! Peak memory in addition to inputs and outputs, in f32, with G samples at a time and Q queries of a block:
//! - Scores: `G heads Q keys` values, at most [`SCORES`] bytes (more only if one query of each head of a sample has more). There are two
//!   such tensors forward and three backward, and perhaps one less if burn fuses. A mask adds one bool tensor. Dropout adds two I64
//!   tensors and one bool tensor if burn does not fuse.
//! - Queries, keys, values and result of the samples: `G depth (2 heads time + 2 kv_heads keys)` values forward, twice as many backward.
//!
//! G is the number of samples whose scores are all within the bound, and at least one. Q is the number of queries that then fit. So the
//! peak does not grow with the batch beyond these bounds.
//!
//! Multiply-adds: `2 samples heads time keys depth` forward, `5 samples heads time keys depth` backward. It is half as many if the mask
//! is causal and blocks are small.

use std::ops::Range;

use burn::backend::tensor::{Device, FloatTensor};
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{DType, Shape};

use super::cost::SCORES;
use super::terms::Sizes;
use super::terms::Terms;
use crate::composed::{Wide, full, put, slice};
use hidden::{Block, dropped, hide};

mod hidden;

/// The sizes and terms of one call.
struct Call<'a, B: Backend> {
    sizes: Sizes,
    terms: &'a Terms<B>,
    device: Device<B>,
    dtype: DType,
}

impl<'a, B: Backend> Call<'a, B> {
    fn packed(qkv: &FloatTensor<B>, terms: &'a Terms<B>) -> Self {
        let (shape, heads) = (qkv.shape(), terms.settings.heads);
        let depth = shape[2] / 3 / heads;
        let sizes = Sizes { samples: shape[0], heads, kv_heads: heads, time: shape[1], keys: shape[1], depth };
        Self { sizes, terms, device: qkv.device(), dtype: qkv.dtype() }
    }

    fn grouped([queries, keys, _]: &[FloatTensor<B>; 3], terms: &'a Terms<B>) -> Self {
        let ([samples, heads, time, depth], of_keys) = (queries.shape().dims(), keys.shape());
        let sizes = Sizes { samples, heads, kv_heads: of_keys[1], time, keys: of_keys[2], depth };
        Self { sizes, terms, device: queries.device(), dtype: queries.dtype() }
    }

    fn is_empty(&self) -> bool {
        let Sizes { samples, time, keys, .. } = self.sizes;
        samples * time * keys == 0
    }

    fn zeros<const D: usize>(&self, shape: [usize; D], dtype: DType) -> FloatTensor<B> {
        full::<B>(Shape::new(shape), 0.0, &self.device, dtype)
    }

    /// Ranges of samples that are computed together.
    fn groups(&self) -> impl Iterator<Item = Range<usize>> + use<B> {
        let Sizes { samples, heads, time, keys, .. } = self.sizes;
        let size = (SCORES / (4 * heads * time * keys)).clamp(1, samples);
        (0..samples).step_by(size).map(move |first| first..(first + size).min(samples))
    }

    /// The blocks of a group of samples.
    fn blocks(&self, samples: &Range<usize>) -> impl Iterator<Item = Block> + use<B> {
        let Sizes { heads, time, keys, .. } = self.sizes;
        let (causal, window) = (self.terms.settings.causal, self.terms.settings.window.unwrap_or(keys));
        let (samples, size) = (samples.clone(), (SCORES / (4 * samples.len() * heads * keys)).clamp(1, time));
        (0..time).step_by(size).map(move |first| {
            let last = (first + size).min(time);
            let seen = if causal { (last + keys).saturating_sub(time).clamp(1, keys) } else { keys };
            let passed = (first + 1 + keys).saturating_sub(time + window).min(seen - 1);
            Block { samples: samples.clone(), queries: first..last, keys: passed..seen }
        })
    }

    /// Reshapes rows of all heads into rows of the heads of keys that serve them, or back.
    fn by_keys(&self, rows: Wide<B>) -> Wide<B> {
        let [samples, heads, count, length] = rows.shape().dims();
        let kv_heads = self.sizes.kv_heads;
        rows.reshape([samples, kv_heads, heads / kv_heads * count, length])
    }

    fn by_queries(&self, rows: Wide<B>) -> Wide<B> {
        let [samples, kv_heads, count, length] = rows.shape().dims();
        let heads = self.sizes.heads;
        rows.reshape([samples, heads, count * kv_heads / heads, length])
    }

    /// The scores of a block. Hidden pairs have -inf.
    fn scores(&self, queries: Wide<B>, keys: Wide<B>, block: &Block) -> Wide<B> {
        let scores = self.by_keys(queries * self.terms.settings.scale).matmul(keys.transpose());
        hide(self.by_queries(scores), block, self.sizes, self.terms)
    }

    /// Sets the dropped weights to zero, and scales the others up accordingly.
    fn drop(&self, weights: Wide<B>, block: &Block) -> Wide<B> {
        match dropped(block, self.sizes, self.terms) {
            Some(dropped) => weights.fill(dropped, 0.0) * (1.0 / (1.0 - self.terms.settings.dropout)) as f32,
            None => weights,
        }
    }

    /// The output `[samples, time, heads, depth]`, and the logarithm of each row's sum of exponentials in f32, `[samples, heads, time]`.
    /// The logarithm is 0 for a query that sees nothing. `load` returns queries, keys and values of samples.
    fn forward(&self, load: impl Fn(&Range<usize>) -> [Wide<B>; 3]) -> [FloatTensor<B>; 2] {
        let Sizes { samples, heads, time, depth, .. } = self.sizes;
        let mut output = self.zeros([samples, time, heads, depth], self.dtype);
        let mut log_sums = self.zeros([samples, heads, time], DType::F32);
        if self.is_empty() {
            return [output, log_sums];
        }
        for group in self.groups() {
            let [queries, keys, values] = load(&group);
            for block in self.blocks(&group) {
                let [keys, values] = [&keys, &values].map(|part| rows(part, &block.keys));
                let scores = self.scores(rows(&queries, &block.queries), keys, &block);
                let largest = scores.clone().largest(3);
                let hidden = largest.clone().equal(f32::NEG_INFINITY);
                let largest = largest.fill(hidden.clone(), 0.0);
                let exponentials = (scores - largest.clone()).exp();
                let sums = exponentials.clone().sum(&[3]).fill(hidden, 1.0);
                let out = self.by_queries(self.by_keys(self.drop(exponentials, &block)).matmul(values));
                let out = (out / sums.clone()).permute(&[0, 2, 1, 3]).narrow(self.dtype);
                output = put::<B>(output, &[group.clone(), block.queries.clone()], out);
                let sums = (sums.ln() + largest).reshape([group.len(), heads, block.queries.len()]);
                log_sums = put::<B>(log_sums, &[group.clone(), 0..heads, block.queries], sums.narrow(DType::F32));
            }
        }
        [output, log_sums]
    }

    /// Passes the gradients of queries, keys and values of each group of samples to `store`. `load` returns queries, keys, values, output
    /// and gradient of samples.
    fn backward(
        &self,
        load: impl Fn(&Range<usize>) -> [Wide<B>; 5],
        log_sums: &FloatTensor<B>,
        mut store: impl FnMut(&Range<usize>, [Wide<B>; 3]),
    ) {
        if self.is_empty() {
            return;
        }
        let Sizes { heads, kv_heads, time, keys, depth, .. } = self.sizes;
        for group in self.groups() {
            let [queries, all_keys, all_values, output, gradient] = load(&group);
            let products = (output * gradient.clone()).sum(&[3]);
            let log_sums = Wide::<B>::of(&slice::<B>(log_sums, std::slice::from_ref(&group)));
            let log_sums = log_sums.reshape([group.len(), heads, time, 1]);
            let zeros = |heads, rows| Wide::<B>::zeros(Shape::new([group.len(), heads, rows, depth]), &self.device);
            let mut of_queries = zeros(heads, time);
            let [mut of_keys, mut of_values] = [zeros(kv_heads, keys), zeros(kv_heads, keys)];
            for block in self.blocks(&group) {
                let at = |heads, rows: Range<usize>| [0..group.len(), 0..heads, rows];
                let seen = || at(kv_heads, block.keys.clone());
                let [keys, values] = [&all_keys, &all_values].map(|part| rows(part, &block.keys));
                let [queries, gradient, products, log_sums] =
                    [&queries, &gradient, &products, &log_sums].map(|part| rows(part, &block.queries));
                let probabilities = (self.scores(queries.clone(), keys.clone(), &block) - log_sums).exp();
                let weights = self.by_keys(self.drop(probabilities.clone(), &block));
                let gradient = self.by_keys(gradient);
                of_values = of_values.add_to(&seen(), weights.transpose().matmul(gradient.clone()));
                let of_weights = self.by_queries(gradient.matmul(values.transpose()));
                let changes = (self.drop(of_weights, &block) - products) * probabilities * self.terms.settings.scale;
                let changes = self.by_keys(changes);
                of_keys = of_keys.add_to(&seen(), changes.clone().transpose().matmul(self.by_keys(queries)));
                let of_block = self.by_queries(changes.matmul(keys));
                of_queries = of_queries.add_to(&at(heads, block.queries.clone()), of_block);
            }
            store(&group, [of_queries, of_keys, of_values]);
        }
    }
}

/// A range of the rows of `[samples, heads, rows, ..]`.
fn rows<B: Backend>(values: &Wide<B>, range: &Range<usize>) -> Wide<B> {
    let shape = values.shape();
    values.slice(&[0..shape[0], 0..shape[1], range.clone()])
}

/// Samples of a tensor.
fn samples_of<B: Backend>(tensor: &FloatTensor<B>, group: &Range<usize>) -> Wide<B> {
    Wide::of(&slice::<B>(tensor, std::slice::from_ref(group)))
}

/// Part `part` of samples of a tensor `[samples, time, parts width]`, as `[samples, heads, time, depth]`.
fn part_of<B: Backend>(
    rows: &FloatTensor<B>,
    group: &Range<usize>,
    part: usize,
    heads: usize,
    depth: usize,
) -> Wide<B> {
    let (time, width) = (rows.shape()[1], heads * depth);
    let rows = Wide::<B>::of(&slice::<B>(rows, &[group.clone(), 0..time, part * width..(part + 1) * width]));
    rows.reshape([group.len(), time, heads, depth]).permute(&[0, 2, 1, 3])
}

pub(super) fn packed_forward<B: Backend>(qkv: &FloatTensor<B>, terms: &Terms<B>) -> [FloatTensor<B>; 2] {
    let call = Call::packed(qkv, terms);
    let Sizes { samples, heads, time, depth, .. } = call.sizes;
    let [output, log_sums] = call.forward(|group| [0, 1, 2].map(|part| part_of::<B>(qkv, group, part, heads, depth)));
    [B::float_reshape(output, Shape::new([samples, time, heads * depth])), log_sums]
}

/// The gradient of packed inputs. `saved` has input, output and logarithms of sums.
pub(super) fn packed_backward<B: Backend>(
    [qkv, output, log_sums]: &[FloatTensor<B>; 3],
    gradient: &FloatTensor<B>,
    terms: &Terms<B>,
) -> FloatTensor<B> {
    let call = Call::packed(qkv, terms);
    let Sizes { samples, heads, time, depth, .. } = call.sizes;
    let width = heads * depth;
    let mut result = Some(call.zeros([samples, time, 3 * width], call.dtype));
    let load = |group: &Range<usize>| {
        [(qkv, 0), (qkv, 1), (qkv, 2), (output, 0), (gradient, 0)]
            .map(|(rows, part)| part_of::<B>(rows, group, part, heads, depth))
    };
    call.backward(load, log_sums, |group, gradients| {
        for (part, gradient) in gradients.into_iter().enumerate() {
            let rows = gradient.permute(&[0, 2, 1, 3]).reshape([group.len(), time, width]).narrow(call.dtype);
            let at = [group.clone(), 0..time, part * width..(part + 1) * width];
            result = result.take().map(|result| put::<B>(result, &at, rows));
        }
    });
    result.unwrap_or_else(|| qkv.clone())
}

pub(super) fn grouped_forward<B: Backend>(inputs: &[FloatTensor<B>; 3], terms: &Terms<B>) -> [FloatTensor<B>; 2] {
    let call = Call::grouped(inputs, terms);
    let [output, log_sums] = call.forward(|group| inputs.each_ref().map(|input| samples_of::<B>(input, group)));
    [B::float_permute(output, &[0, 2, 1, 3]), log_sums]
}

/// The gradients of queries, keys and values that are wanted. `saved` has output and logarithms of sums.
pub(super) fn grouped_backward<B: Backend>(
    inputs: &[FloatTensor<B>; 3],
    [output, log_sums]: &[FloatTensor<B>; 2],
    gradient: &FloatTensor<B>,
    terms: &Terms<B>,
    wanted: [bool; 3],
) -> [Option<FloatTensor<B>>; 3] {
    let call = Call::grouped(inputs, terms);
    let [queries, keys, values] = inputs;
    let mut results = [0, 1, 2].map(|input| {
        let shape = inputs[input].shape();
        wanted[input].then(|| full::<B>(shape, 0.0, &call.device, call.dtype))
    });
    let load =
        |group: &Range<usize>| [queries, keys, values, output, gradient].map(|tensor| samples_of::<B>(tensor, group));
    call.backward(load, log_sums, |group, gradients| {
        for (result, gradient) in results.iter_mut().zip(gradients) {
            let at = std::slice::from_ref(group);
            *result = result.take().map(|result| put::<B>(result, at, gradient.narrow(call.dtype)));
        }
    });
    results
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests;
