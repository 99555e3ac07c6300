//! Scratch memory of the kernels on burn's CPU device, by the formulas in the `flex.rs` of each operation of kiln-layers.
//!
//! A kernel computes in f32. It widens the values of a 16-bit tensor piece by piece, into buffers of each thread.

use super::super::gemm::Gemm;
use super::super::memory::Memory;
use super::operation::Operation;
use super::work::Attention;

/// Bytes of a number of f32 values.
fn wide(values: u64) -> u64 {
    4 * values
}

/// Buffers of the threads that run `tasks`: `values` f32 values each.
fn of_threads(tasks: u64, values: u64, memory: &Memory<'_>) -> u64 {
    wide(values) * tasks.min(memory.profile.threads.max(1) as u64)
}

/// Buffers of the threads that run `tasks` if the operation has 16 bits: `values` f32 values each. In f32 there are none.
fn of_half(operation: &Operation<'_>, tasks: u64, values: u64, memory: &Memory<'_>) -> u64 {
    if operation.is_half() { of_threads(tasks, values, memory) } else { 0 }
}

/// Bytes packed by a product of matrices in f32.
fn packed([m, k, n]: [u64; 3], left_rows: bool, memory: &Memory<'_>) -> u64 {
    let [m, k, n] = [m, k, n].map(|size| usize::try_from(size).unwrap_or(usize::MAX));
    Gemm { m, k, n, left_rows, right_rows: true, half: false }.packed(memory.profile)
}

/// Values of a task of an elementwise operation.
const CHUNK: u64 = 16 * 1024;

/// Buffers of a chunk's values for each thread.
pub(super) fn chunks(operation: &Operation<'_>, buffers: u64, memory: &Memory<'_>) -> u64 {
    let elements = operation.elements(0);
    of_half(operation, elements.div_ceil(CHUNK), buffers * CHUNK.min(elements), memory)
}

/// Forward and backward: two buffers of a chunk, or of a row if it is longer.
pub(super) fn softmax(operation: &Operation<'_>, memory: &Memory<'_>) -> u64 {
    let task = CHUNK.max(operation.dim_from_end(0, 0));
    of_half(operation, operation.elements(0).div_ceil(task), 2 * task, memory)
}

/// Forward and backward: at most 64 KiB for each thread.
pub(super) fn add_relu(operation: &Operation<'_>, memory: &Memory<'_>) -> u64 {
    const PIECE: u64 = 4096;
    let elements = operation.elements(0);
    of_half(operation, elements.div_ceil(PIECE), 3 * PIECE.min(elements), memory)
}

/// Buffers of some rows. Weight and bias are copied.
pub(super) fn norm(operation: &Operation<'_>, memory: &Memory<'_>) -> u64 {
    const ROWS: u64 = 8;
    let width = operation.dim_from_end(0, 0);
    let rows = operation.elements(0) / width.max(1);
    wide(2 * width) + of_half(operation, rows.div_ceil(ROWS), 2 * ROWS.min(rows) * width, memory)
}

/// Buffers of some rows, and the gradients of weight and bias for each of 16 groups of rows.
pub(super) fn norm_backward(operation: &Operation<'_>, memory: &Memory<'_>) -> u64 {
    const GROUPS: u64 = 16;
    let width = operation.dim_from_end(0, 0);
    let rows = operation.elements(0) / width.max(1);
    let groups = rows.div_ceil(rows.div_ceil(GROUPS).max(1));
    let row = of_threads(groups, width, memory) + of_half(operation, groups, 2 * width, memory);
    // After the rows, the sums of all groups exist, and a copy of one of them.
    let sums = wide(3 * width);
    wide(width) + wide(2 * width) * groups + row.max(sums)
}

/// Two values of each channel of each sample, and two buffers of a channel's values for each thread.
pub(super) fn group_norm(operation: &Operation<'_>, memory: &Memory<'_>) -> u64 {
    let channels = operation.dim(0, 0) * operation.dim(0, 1);
    wide(2 * channels) + of_half(operation, channels, 2 * operation.elements(0) / channels.max(1), memory)
}

/// Forward and backward: a slice for each sample of a block of channels, and 64 KiB for each thread. The first input has the shape
/// `[samples, channels, ..]`.
pub(super) fn batch_norm(operation: &Operation<'_>, memory: &Memory<'_>) -> u64 {
    const RUN: u64 = 512;
    const BUFFERS: u64 = 16 * 1024;
    let (samples, channels) = (operation.dim(0, 0), operation.dim(0, 1));
    let plane = operation.elements(0) / (samples * channels).max(1);
    let blocks = channels.div_ceil((RUN / plane.max(1)).max(1));
    // For each channel: its parameters and statistics, and its sums in f64.
    16 * samples * blocks + wide(24 * channels) + of_half(operation, blocks * samples, BUFFERS, memory)
}

/// `count` f32 values for each plane of `[images, channels, height, width]`, and as many buffers of a plane for each thread.
pub(super) fn channel_scale(operation: &Operation<'_>, count: u64, memory: &Memory<'_>) -> u64 {
    let planes = operation.dim(0, 0) * operation.dim(0, 1);
    wide(count * planes) + of_half(operation, planes, count * operation.elements(0) / planes.max(1), memory)
}

/// Cosines and sines of each position, and a row for each thread.
pub(super) fn rotary(operation: &Operation<'_>, memory: &Memory<'_>) -> u64 {
    let (time, depth) = (operation.dim_from_end(0, 1), operation.dim_from_end(0, 0));
    wide(time * depth) + of_half(operation, operation.elements(0) / depth.max(1), depth, memory)
}

/// Keys of a block.
const KEYS: u64 = 256;
/// Queries of a task of the forward pass.
const SPAN: u64 = 512;

pub(super) fn attention(sizes: &Attention, operation: &Operation<'_>, memory: &Memory<'_>) -> u64 {
    let (span, queries, keys) = (SPAN.min(sizes.time), Attention::QUERIES.min(sizes.time), KEYS.min(sizes.keys));
    let tasks = sizes.samples * sizes.heads * sizes.time.div_ceil(SPAN);
    let values = 2 * span * sizes.depth + 2 * keys * sizes.depth + queries * keys;
    of_threads(tasks, values, memory) + of_half(operation, tasks, sizes.depth, memory)
}

pub(super) fn attention_backward(sizes: &Attention, operation: &Operation<'_>, memory: &Memory<'_>) -> u64 {
    let (span, queries, keys) = (SPAN.min(sizes.time), Attention::QUERIES.min(sizes.time), KEYS.min(sizes.keys));
    let tasks = sizes.samples * sizes.shared;
    let values = 3 * span * sizes.depth + 3 * keys * sizes.depth + 2 * queries * keys + 2 * sizes.keys * sizes.depth;
    of_threads(tasks, values, memory) + of_half(operation, tasks, sizes.depth, memory)
}

/// Logits and hidden rows of a chunk, some values for each row, a block of a 16-bit weight, and the operands that the products pack.
pub(super) fn loss(operation: &Operation<'_>, memory: &Memory<'_>) -> u64 {
    const CHUNK: u64 = 2 << 20;
    const ROWS: u64 = 256;
    const BLOCK: u64 = 2 << 20;
    const CLASSES: u64 = 2048;
    let (rows, width, classes) = (operation.dim(0, 0), operation.dim(0, 1), operation.dim(1, 1));
    let most = (CHUNK / wide(width + classes).max(1)).max(ROWS);
    let chunk = rows.div_ceil(rows.div_ceil(most).max(1)).max(1);
    let block = if operation.reads_half(1) { BLOCK.min(wide(operation.elements(1))) } else { 0 };
    let by_class = operation.inputs.get(1).is_some_and(|weight| memory.strides(weight.tensor).last() != Some(&1));
    let logits = packed([chunk, width, classes], true, memory);
    let of_weight = match operation.out_elements(2) {
        0 => 0,
        _ if by_class => packed([classes.min(CLASSES), chunk, width], false, memory),
        _ => packed([width, chunk, classes], false, memory),
    };
    wide(chunk * (width + classes)) + 32 * rows + wide(operation.elements(2)) + block + logits.max(of_weight)
}

/// With a prologue or in 16 bits: `copies` of the inputs of at most 256 rows. In 16 bits also the outputs, and 256 lines of the weight.
pub(super) fn linear(operation: &Operation<'_>, weight: usize, copies: u64, memory: &Memory<'_>) -> u64 {
    const ROWS: u64 = 256;
    let (inputs, outputs) = (operation.dim(weight, 0), operation.dim(weight, 1));
    let rows = operation.elements(0) / inputs.max(1);
    let (prologue, half) = (operation.scalar(0) > 0, operation.reads_half(0));
    let together = if prologue || half { rows.min(ROWS) } else { rows };
    let of_rows = if prologue || half { wide(copies * together * inputs) } else { 0 };
    let of_half = if half { wide(together * outputs) + wide(ROWS * inputs.max(outputs)) } else { 0 };
    of_rows + of_half + packed([together, inputs, outputs], true, memory)
}

/// The largest number of values that a task of a convolution copies.
const IMAGES: u64 = 48 << 10;
/// Number of tasks that a batch of images is divided into.
const TASKS: u64 = 8;

/// Values of a task's images, each with a line of zeros. The whole batch has `elements` values in planes of `[height, width]`.
fn of_images(elements: u64, [height, width]: [u64; 2]) -> u64 {
    elements.div_ceil(TASKS) * (height + 1) * (width + 1) / (height * width).max(1)
}

fn plane(operation: &Operation<'_>, input: usize) -> [u64; 2] {
    [operation.dim_from_end(input, 1), operation.dim_from_end(input, 0)]
}

/// A weight in f32 in the order of the kernel (in 16 bits also in its own order), and for each thread copied images of the source and the
/// sums of the target. The target has planes of the same size or smaller ones.
pub(super) fn conv2d(operation: &Operation<'_>, [source, weight]: [usize; 2], memory: &Memory<'_>) -> u64 {
    let copies = if operation.is_half() { 2 } else { 1 };
    let images = [operation.elements(source), operation.out_elements(0)]
        .map(|all| of_images(all, plane(operation, source)).min(IMAGES));
    wide(copies * operation.elements(weight)) + of_threads(TASKS, images[0] + images[1], memory)
}

/// Partial sums of the gradient, in 16 bits the gradient in f32, and some images of input and gradient for each thread.
pub(super) fn conv2d_weight_backward(operation: &Operation<'_>, memory: &Memory<'_>) -> u64 {
    const SUMS: u64 = 256 << 10;
    let (weight, threads) = (wide(operation.out_elements(0)), memory.profile.threads.max(1) as u64);
    // Each thread has the sums of a part of a large weight.
    let sums = if weight > SUMS { weight * threads.min(TASKS) / TASKS } else { SUMS.min(TASKS * weight) };
    let narrowed = if operation.is_half() { weight } else { 0 };
    let images: u64 = [0, 1].map(|input| of_images(operation.elements(input), plane(operation, input))).iter().sum();
    sums + narrowed + of_threads(TASKS, images.min(2 * IMAGES), memory)
}

/// A plane of the first input for each thread.
pub(super) fn planes(operation: &Operation<'_>, memory: &Memory<'_>) -> u64 {
    let plane = operation.dim_from_end(0, 0) * operation.dim_from_end(0, 1);
    wide(operation.dim(0, 1)) + of_half(operation, operation.dim(0, 1), plane, memory)
}

/// Slices of each plane, and some rows for each thread.
pub(super) fn max_pool(operation: &Operation<'_>, memory: &Memory<'_>) -> u64 {
    let row = operation.dim_from_end(0, 0);
    let planes = operation.elements(0) / (row * operation.dim_from_end(0, 1)).max(1);
    16 * planes + of_threads(planes, 3 * row, memory)
}

/// A plane of the output for each thread.
pub(super) fn max_pool_backward(operation: &Operation<'_>, memory: &Memory<'_>) -> u64 {
    let planes = operation.dim(0, 0) * operation.dim(0, 1);
    of_half(operation, planes, operation.out_elements(0) / planes.max(1), memory)
}
