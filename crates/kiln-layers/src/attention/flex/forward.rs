//! The forward pass of a span of queries of one head.

use super::call::Call;
use super::grid::sized;
use super::grid::{Grid, Heads};
use super::softmax::{finish, online_softmax, transpose};
use crate::attention::cost::{KEYS, QUERIES, blocks, forward_lengths};
use crate::attention::terms::Sizes;
use kiln_operations::cpu::buffers::widened_buffers;
use kiln_operations::cpu::gemm::{Matrix, Output, Threads, multiply};
use kiln_operations::cpu::stored::Stored;
use kiln_operations::simd::LANES;

/// A span of queries of one head.
pub(super) struct Task<'a, E> {
    pub(super) sample: usize,
    pub(super) head: usize,
    /// The first query.
    pub(super) first: usize,
    /// `[queries, depth]`.
    pub(super) out: Grid<'a, E>,
    /// `[queries]`.
    pub(super) log_sums: &'a mut [f32],
}

/// Buffers of a task.
pub(super) struct Scratch {
    queries: Vec<f32>,
    out: Vec<f32>,
    largest: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    scores: Vec<f32>,
    seen: Vec<usize>,
    wide: Vec<f32>,
}

impl Scratch {
    /// Buffers for heads of values of type `E`.
    pub(super) fn new<E: Stored>(Sizes { time, keys, depth, .. }: Sizes) -> Self {
        let [queries, out, largest, by_columns, values, scores] =
            forward_lengths([time, keys, depth]).map(Vec::with_capacity);
        let ([wide], seen) = (widened_buffers::<E, 1>(depth), Vec::with_capacity(blocks(time, keys)[1]));
        Self { queries, out, largest, keys: by_columns, values, scores, seen, wide }
    }
}

pub(super) fn forward<E: Stored>(
    call: &Call<'_>,
    inputs: &[Heads<'_, E>; 3],
    task: Task<'_, E>,
    scratch: &mut Scratch,
) {
    let Task { sample, head, first, out: mut kept, log_sums } = task;
    let (count, depth) = (log_sums.len(), call.sizes.depth);
    let kv_head = head / (call.sizes.heads / call.sizes.kv_heads);
    let Scratch { queries, out, largest, keys, values, scores, seen, wide } = scratch;
    let (queries, out, largest) = (sized(queries, count * depth), sized(out, count * depth), sized(largest, count));
    inputs[0].load(sample, head, first..first + count, queries, wide);
    out.fill(0.0);
    largest.fill(f32::NEG_INFINITY);
    log_sums.fill(0.0);
    let end = call.last_key(sample, first + count);
    let begin = call.first_key(first) / KEYS * KEYS;
    for key in (begin..end).step_by(KEYS) {
        let block = KEYS.min(end - key);
        let stride = block.next_multiple_of(LANES);
        let (keys, values) = (sized(keys, depth * stride), sized(values, block * depth));
        inputs[1].load(sample, kv_head, key..key + block, values, wide);
        transpose(values, depth, keys, stride);
        inputs[2].load(sample, kv_head, key..key + block, values, wide);
        for query in (0..count).step_by(QUERIES) {
            let rows = QUERIES.min(count - query);
            let columns = call.last_key(sample, first + query + rows).saturating_sub(key).min(block);
            if columns == 0 || call.first_key(first + query) >= key + columns {
                continue;
            }
            let (scores, seen) = (sized(scores, rows * stride), sized(seen, rows));
            let queries = Matrix::new(&queries[query * depth..][..rows * depth], rows, depth);
            let keys = Matrix::strided(keys, depth, columns, stride);
            multiply((scores, stride, Output::Replace), queries, keys, call.settings.scale, Threads::One);
            call.hide([sample, head, first + query, key], (scores, stride, columns), seen);
            let (largest, sums) = (&mut largest[query..query + rows], &mut log_sums[query..query + rows]);
            let out = &mut out[query * depth..][..rows * depth];
            online_softmax(scores, stride, seen, largest, sums, out, depth);
            if let Some(dropout) = &call.dropout {
                let place = [call.dropped_head(sample, head), first + query, key];
                dropout.drop(scores, stride, seen, place);
            }
            let weights = Matrix::strided(scores, rows, columns, stride);
            let values = Matrix::new(&values[..columns * depth], columns, depth);
            multiply((out, depth, Output::Add), weights, values, 1.0, Threads::One);
        }
    }
    finish(out, depth, largest, log_sums, call.dropout.map_or(1.0, |dropout| dropout.factor));
    kept.store(0, 0, depth, out, wide);
}
