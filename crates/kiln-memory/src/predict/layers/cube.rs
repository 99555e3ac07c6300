//! Temporary tensors on CubeCL devices, by the formulas in the `composed.rs` of each operation of kiln-layers. Where burn does not join
//! steps of a composition into one kernel, each step makes a tensor in f32. The numbers are upper bounds, measured with the CUDA emulator
//! (docs/cuda.md).

use super::operation::Operation;
use super::work::Attention;

/// `count` f32 tensors as large as an input.
pub(super) fn wide(operation: &Operation<'_>, input: usize, count: u64) -> u64 {
    4 * count * operation.elements(input)
}

/// `scores` tensors of the scores of a block, and `rows` rows of a head's depth for each query of each head of the samples of a block.
fn of_block(attention: &Attention, scores: u64, rows: u64) -> u64 {
    const SCORES: u64 = 64 << 20;
    let Attention { samples, heads, time, keys, depth, .. } = *attention;
    let row = heads.saturating_mul(4 * keys).max(1);
    let together = (SCORES / row.saturating_mul(time).max(1)).clamp(1, samples.max(1));
    let queries = (SCORES / row.saturating_mul(together)).clamp(1, time.max(1));
    let block = row.saturating_mul(together).saturating_mul(queries);
    block.saturating_mul(scores).saturating_add(4 * rows * together * time * heads * depth)
}

pub(super) fn attention(attention: &Attention) -> u64 {
    of_block(attention, 2, 4)
}

/// In f32 the gradient of the scores is joined with the operations that read it. `half` says that 16 bits are read.
pub(super) fn attention_backward(attention: &Attention, half: bool) -> u64 {
    let (scores, rows) = if half { (3, 8) } else { (2, 7) };
    of_block(attention, scores, rows)
}

/// The logits of a chunk and four tensors of its rows, a copy of 16-bit weights in f32, and the part of their gradient that a chunk adds.
pub(super) fn loss(operation: &Operation<'_>) -> u64 {
    const LOGITS: u64 = 128 << 20;
    let (rows, width, classes) = (operation.dim(0, 0).max(1), operation.dim(0, 1), operation.dim(1, 1));
    let chunk = (LOGITS / (4 * classes).max(1)).clamp(1, rows);
    let weights = u64::from(operation.reads_half(1)) + u64::from(chunk < rows && operation.out_elements(2) > 0);
    4 * chunk * (classes + 4 * width) + wide(operation, 1, weights)
}
