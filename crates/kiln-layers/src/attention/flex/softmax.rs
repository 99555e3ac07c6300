//! The passes over a block of scores.

use kiln_operations::cpu::math::exp;
use kiln_operations::simd;
use kiln_operations::simd::{LANES, pair_sums};

/// Combines the values of all lanes into one, in pairs.
#[inline(always)]
fn reduced(mut lanes: [f32; LANES], both: impl Fn(f32, f32) -> f32) -> f32 {
    let mut count = LANES;
    while count > 1 {
        count /= 2;
        for lane in 0..count {
            lanes[lane] = both(lanes[lane], lanes[count + lane]);
        }
    }
    lanes[0]
}

/// The largest value, in whole lanes. NaN is ignored.
#[inline(always)]
fn largest_of(values: &[f32]) -> f32 {
    let larger = |left: f32, right: f32| if right > left { right } else { left };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for chunk in values.chunks_exact(LANES) {
        for lane in 0..LANES {
            lanes[lane] = larger(lanes[lane], chunk[lane]);
        }
    }
    reduced(lanes, larger)
}

simd! {
/// Turns scores into exp(score - largest of the row so far). Scores are rows of `stride`, a multiple of the lanes. Of row `r`, the first
/// `seen[r]` scores count; the others become zero. `sums` and `out`, `[rows, depth]`, are scaled to the new largest score.
pub(super) fn online_softmax(scores: &mut [f32], stride: usize, seen: &[usize], largest: &mut [f32], sums: &mut [f32], out: &mut [f32], depth: usize) {
    for (row, (scores, &seen)) in scores.chunks_exact_mut(stride).zip(seen).enumerate() {
        if seen == 0 {
            scores.fill(0.0);
            continue;
        }
        // Whole lanes are computed. Values that do not count add nothing.
        let whole = seen.next_multiple_of(LANES);
        scores[seen..whole].fill(f32::NEG_INFINITY);
        let new = largest_of(&scores[..whole]).max(largest[row]);
        let keep = if largest[row] == f32::NEG_INFINITY { 0.0 } else { exp(largest[row] - new) };
        let mut lanes = [0.0f32; LANES];
        for chunk in scores[..whole].chunks_exact_mut(LANES) {
            for lane in 0..LANES {
                chunk[lane] = exp(chunk[lane] - new);
                lanes[lane] += chunk[lane];
            }
        }
        scores[seen..].fill(0.0);
        sums[row] = sums[row].mul_add(keep, reduced(lanes, |left, right| left + right));
        largest[row] = new;
        if keep != 1.0 {
            out[row * depth..][..depth].iter_mut().for_each(|value| *value *= keep);
        }
    }
}}

simd! {
/// Turns the weighted sums `out`, `[rows, depth]`, into means, and `sums` into their logarithms. Rows that see nothing become zero.
pub(super) fn finish(out: &mut [f32], depth: usize, largest: &[f32], sums: &mut [f32], factor: f32) {
    for ((out, &largest), sum) in out.chunks_exact_mut(depth).zip(largest).zip(sums) {
        let share = if *sum == 0.0 { 0.0 } else { factor / *sum };
        out.iter_mut().for_each(|value| *value *= share);
        *sum = largest + sum.ln();
    }
}}

simd! {
/// Turns scores into probabilities. Scores are rows of `stride`, a multiple of the lanes. Those that do not count become zero.
pub(super) fn probabilities(scores: &mut [f32], stride: usize, seen: &[usize], log_sums: &[f32]) {
    for ((scores, &seen), &log_sum) in scores.chunks_exact_mut(stride).zip(seen).zip(log_sums) {
        for chunk in scores[..seen.next_multiple_of(LANES)].chunks_exact_mut(LANES) {
            for score in chunk {
                *score = exp(*score - log_sum);
            }
        }
        scores[seen..].fill(0.0);
    }
}}

/// Rows and columns of a tile that is transposed at once.
const TILE: usize = 16;

simd! {
/// Writes `rows`, `[count, depth]`, as columns into `out`, `[depth, stride]`.
pub(super) fn transpose(rows: &[f32], depth: usize, out: &mut [f32], stride: usize) {
    let mut tile = [[0.0f32; TILE]; TILE];
    for (number, rows) in rows.chunks(TILE * depth).enumerate() {
        let count = rows.len() / depth;
        for first in (0..depth).step_by(TILE) {
            let width = TILE.min(depth - first);
            for (tile, row) in tile.iter_mut().zip(rows.chunks_exact(depth)) {
                match row[first..].first_chunk() {
                    Some(whole) => *tile = *whole,
                    None => tile[..width].copy_from_slice(&row[first..]),
                }
            }
            for column in 0..width {
                let line: [f32; TILE] = std::array::from_fn(|row| tile[row][column]);
                let out = &mut out[(first + column) * stride + number * TILE..][..count];
                match out.first_chunk_mut() {
                    Some(whole) => *whole = line,
                    None => out.copy_from_slice(&line[..count]),
                }
            }
        }
    }
}}

simd! {
/// Turns gradients of probabilities into gradients of scores. A negative probability belongs to a weight that was dropped. The gradients
/// of the other weights are multiplied by `factor`.
pub(super) fn score_gradients(probabilities: &[f32], gradients: &mut [f32], stride: usize, products: &[f32], factor: f32) {
    let rows = probabilities.chunks_exact(stride).zip(gradients.chunks_exact_mut(stride)).zip(products);
    for ((probabilities, gradients), &product) in rows {
        for (&probability, gradient) in probabilities.iter().zip(gradients) {
            let passed = if probability.is_sign_negative() { 0.0 } else { *gradient * factor };
            *gradient = probability.abs() * (passed - product);
        }
    }
}}

simd! {
/// The product of each row of `left` with the same row of `right`. Both are `[rows, depth]`.
pub(super) fn products(left: &[f32], right: &[f32], depth: usize, out: &mut [f32]) {
    for ((left, right), out) in left.chunks_exact(depth).zip(right.chunks_exact(depth)).zip(out) {
        *out = pair_sums(left, right, |a, b| [a * b, 0.0])[0];
    }
}}
