//! The backward pass of one head of keys and values, and of the heads of queries that it serves.

use super::call::Call;
use super::grid::sized;
use super::grid::{Grid, Heads};
use super::softmax::{probabilities, products, score_gradients, transpose};
use crate::attention::cost::{KEYS, QUERIES, SPAN, backward_lengths, blocks};
use crate::attention::terms::Sizes;
use kiln_operations::cpu::buffers::widened_buffers;
use kiln_operations::cpu::gemm::{Matrix, Output, Threads, multiply};
use kiln_operations::cpu::stored::Stored;
use kiln_operations::simd::LANES;

/// One head of keys and values.
pub(super) struct Task<'a, E> {
    pub(super) sample: usize,
    pub(super) kv_head: usize,
    /// The gradients that are wanted: of the queries of all heads that it serves, `[time, heads / kv_heads * depth]`, of the keys and of
    /// the values, `[keys, depth]`.
    pub(super) gradients: [Option<Grid<'a, E>>; 3],
}

/// The tensors that the forward pass saved, and the gradient of its output.
pub(super) struct Saved<'a, E> {
    pub(super) inputs: [Heads<'a, E>; 3],
    pub(super) out: Heads<'a, E>,
    /// `[batch, heads, time]`.
    pub(super) log_sums: &'a [f32],
    pub(super) gradient: Heads<'a, E>,
}

/// Buffers of a task.
pub(super) struct Scratch {
    queries: Vec<f32>,
    /// The output of the forward pass, then the gradient of the queries.
    of_queries: Vec<f32>,
    gradient: Vec<f32>,
    products: Vec<f32>,
    keys: Vec<f32>,
    keys_transposed: Vec<f32>,
    values_transposed: Vec<f32>,
    scores: Vec<f32>,
    changes: Vec<f32>,
    seen: Vec<usize>,
    of_keys: Vec<f32>,
    of_values: Vec<f32>,
    wide: Vec<f32>,
}

impl Scratch {
    /// Buffers for heads of values of type `E`.
    pub(super) fn new<E: Stored>(Sizes { time, keys, depth, .. }: Sizes) -> Self {
        let lengths = backward_lengths([time, keys, depth]);
        let [
            queries,
            of_queries,
            gradient,
            products,
            keys_of_block,
            keys_transposed,
            values_transposed,
            scores,
            changes,
            of_keys,
            of_values,
        ] = lengths.map(Vec::with_capacity);
        let ([wide], seen) = (widened_buffers::<E, 1>(depth), Vec::with_capacity(blocks(time, keys)[1]));
        Self {
            queries,
            of_queries,
            gradient,
            products,
            keys: keys_of_block,
            keys_transposed,
            values_transposed,
            scores,
            changes,
            seen,
            of_keys,
            of_values,
            wide,
        }
    }
}

pub(super) fn backward<E: Stored>(call: &Call<'_>, saved: &Saved<'_, E>, task: Task<'_, E>, scratch: &mut Scratch) {
    let Task { sample, kv_head, gradients: [mut of_queries, mut of_keys, mut of_values] } = task;
    let (sizes, depth) = (call.sizes, call.sizes.depth);
    let total = |wanted: bool| if wanted { sizes.keys * depth } else { 0 };
    sized(&mut scratch.of_keys, total(of_keys.is_some())).fill(0.0);
    sized(&mut scratch.of_values, total(of_values.is_some())).fill(0.0);
    let group = sizes.heads / sizes.kv_heads;
    let wanted = [of_queries.is_some(), of_keys.is_some(), of_values.is_some()];
    for (number, head) in (kv_head * group..(kv_head + 1) * group).enumerate() {
        for first in (0..sizes.time).step_by(SPAN) {
            let count = SPAN.min(sizes.time - first);
            span(call, saved, ([sample, head, kv_head], first, count), wanted, scratch);
            if let Some(grid) = &mut of_queries {
                grid.store(first, number * depth, depth, &scratch.of_queries[..count * depth], &mut scratch.wide);
            }
        }
    }
    if let Some(grid) = &mut of_keys {
        grid.store(0, 0, depth, &scratch.of_keys[..sizes.keys * depth], &mut scratch.wide);
    }
    if let Some(grid) = &mut of_values {
        grid.store(0, 0, depth, &scratch.of_values[..sizes.keys * depth], &mut scratch.wide);
    }
}

/// The gradients of a span of queries, and the span's contribution to those of keys and values.
fn span<E: Stored>(
    call: &Call<'_>,
    saved: &Saved<'_, E>,
    ([sample, head, kv_head], first, count): ([usize; 3], usize, usize),
    wanted: [bool; 3],
    scratch: &mut Scratch,
) {
    let (sizes, depth, scale) = (call.sizes, call.sizes.depth, call.settings.scale);
    let factor = call.dropout.map_or(1.0, |dropout| dropout.factor);
    let Scratch { wide, seen, .. } = scratch;
    let queries = sized(&mut scratch.queries, count * depth);
    let of_queries = sized(&mut scratch.of_queries, count * depth);
    let gradient = sized(&mut scratch.gradient, count * depth);
    let totals = sized(&mut scratch.products, count);
    saved.inputs[0].load(sample, head, first..first + count, queries, wide);
    saved.out.load(sample, head, first..first + count, of_queries, wide);
    saved.gradient.load(sample, head, first..first + count, gradient, wide);
    products(of_queries, gradient, depth, totals);
    of_queries.fill(0.0);
    let log_sums = &saved.log_sums[(sample * sizes.heads + head) * sizes.time + first..][..count];
    let end = call.last_key(sample, first + count);
    let begin = call.first_key(first) / KEYS * KEYS;
    for key in (begin..end).step_by(KEYS) {
        let block = KEYS.min(end - key);
        let stride = block.next_multiple_of(LANES);
        let keys = sized(&mut scratch.keys, block * depth);
        let keys_transposed = sized(&mut scratch.keys_transposed, depth * stride);
        let values_transposed = sized(&mut scratch.values_transposed, depth * stride);
        saved.inputs[2].load(sample, kv_head, key..key + block, keys, wide);
        transpose(keys, depth, values_transposed, stride);
        saved.inputs[1].load(sample, kv_head, key..key + block, keys, wide);
        transpose(keys, depth, keys_transposed, stride);
        for query in (0..count).step_by(QUERIES) {
            let rows = QUERIES.min(count - query);
            let columns = call.last_key(sample, first + query + rows).saturating_sub(key).min(block);
            if columns == 0 || call.first_key(first + query) >= key + columns {
                continue;
            }
            let scores = sized(&mut scratch.scores, rows * stride);
            let changes = sized(&mut scratch.changes, rows * stride);
            let seen = sized(seen, rows);
            let queries = Matrix::new(&queries[query * depth..][..rows * depth], rows, depth);
            let gradient = Matrix::new(&gradient[query * depth..][..rows * depth], rows, depth);
            let matrix = Matrix::strided(keys_transposed, depth, columns, stride);
            multiply((scores, stride, Output::Replace), queries, matrix, scale, Threads::One);
            call.hide([sample, head, first + query, key], (scores, stride, columns), seen);
            probabilities(scores, stride, seen, &log_sums[query..query + rows]);
            if let Some(dropout) = &call.dropout {
                dropout.sign(scores, changes, stride, seen, [call.dropped_head(sample, head), first + query, key]);
            }
            if wanted[2] {
                let weights = if call.dropout.is_some() { &*changes } else { &*scores };
                let weights = Matrix::strided(weights, rows, columns, stride).transposed();
                let out = &mut scratch.of_values[key * depth..][..columns * depth];
                multiply((out, depth, Output::Add), weights, gradient, factor, Threads::One);
            }
            if !wanted[0] && !wanted[1] {
                continue;
            }
            let matrix = Matrix::strided(values_transposed, depth, columns, stride);
            multiply((changes, stride, Output::Replace), gradient, matrix, 1.0, Threads::One);
            score_gradients(scores, changes, stride, &totals[query..query + rows], factor);
            let changes = Matrix::strided(changes, rows, columns, stride);
            if wanted[1] {
                let out = &mut scratch.of_keys[key * depth..][..columns * depth];
                multiply((out, depth, Output::Add), changes.transposed(), queries, scale, Threads::One);
            }
            if wanted[0] {
                let keys = Matrix::new(&keys[..columns * depth], columns, depth);
                let out = &mut of_queries[query * depth..][..rows * depth];
                multiply((out, depth, Output::Add), changes, keys, scale, Threads::One);
            }
        }
    }
}
