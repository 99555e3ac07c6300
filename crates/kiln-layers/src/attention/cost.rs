//! The cost of attention.

use burn::tensor::DType;
use kiln_operations::simd::LANES;
use kiln_operations::{Call, Cost, Cpu, Gpu};

/// Queries of a block on the CPU device.
pub(super) const QUERIES: usize = 128;
/// Keys of a block on the CPU device.
pub(super) const KEYS: usize = 256;
/// Queries that share one load of a block of keys and values on the CPU device.
pub(super) const SPAN: usize = 512;
/// Bytes of a task of the forward and of the backward pass on the CPU device.
pub(super) const TASK_BYTES: [u64; 2] = [72, 136];
/// Bytes of the scores of a block on other devices. The number is small in tests, so that small inputs have several blocks.
pub(super) const SCORES: usize = if cfg!(test) { 4 << 10 } else { 64 << 20 };

/// Rows and columns of a tile of a product on a GPU.
pub(super) const TILE: usize = 16;

/// Units of a plane in the kernels.
pub(super) const PLANE: usize = 32;
/// The most bytes of shared memory that a kernel takes. CUDA's devices have them.
pub(super) const SHARED: usize = 64 << 10;

/// Whether there are kernels that take heads of this depth on a GPU: those with whole tiles, on GPUs with such planes.
pub(super) fn has_kernels(gpu: &Gpu, dtype: DType, depth: usize) -> bool {
    gpu.plane == PLANE
        && gpu.shared_bytes >= SHARED as u64
        && matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
        && depth.is_multiple_of(TILE)
        && (TILE..=128).contains(&depth)
}

/// Input: qkv. Scalars: heads, causal, keys that a query sees.
pub(super) static PACKED: Cost = Cost {
    any_order: &[0],
    cpu_scratch: |call, cpu| forward(&Sizes::packed(call), call, cpu),
    gpu_scratch: |call, gpu| gpu_forward(&Sizes::packed(call), call, gpu),
    multiply_adds: |call| 2.0 * Sizes::packed(call).product(),
    by_sample: true,
    ..Cost::new("kiln::attention")
};

/// Inputs: qkv, output, log sums, gradient.
pub(super) static PACKED_BACKWARD: Cost = Cost {
    any_order: &[0, 1, 3],
    cpu_scratch: |call, cpu| backward(&Sizes::packed(call), call, cpu),
    gpu_scratch: |call, gpu| gpu_backward(&Sizes::packed(call), call, gpu),
    multiply_adds: |call| 5.0 * Sizes::packed(call).product(),
    by_sample: true,
    ..Cost::new("kiln::attention_backward")
};

/// Inputs: queries, keys, values. Scalars: heads, causal, keys that a query sees.
pub(super) static GROUPED: Cost = Cost {
    any_order: &[0, 1, 2],
    cpu_scratch: |call, cpu| forward(&Sizes::grouped(call), call, cpu),
    gpu_scratch: |call, gpu| gpu_forward(&Sizes::grouped(call), call, gpu),
    multiply_adds: |call| 2.0 * Sizes::grouped(call).product(),
    by_sample: true,
    ..Cost::new("kiln::grouped_attention")
};

/// Inputs: queries, keys, values, output, log sums, gradient.
pub(super) static GROUPED_BACKWARD: Cost = Cost {
    any_order: &[0, 1, 2, 3, 5],
    cpu_scratch: |call, cpu| backward(&Sizes::grouped(call), call, cpu),
    gpu_scratch: |call, gpu| gpu_backward(&Sizes::grouped(call), call, gpu),
    multiply_adds: |call| 5.0 * Sizes::grouped(call).product(),
    by_sample: true,
    ..Cost::new("kiln::grouped_attention_backward")
};

/// The sizes of a recorded call.
struct Sizes {
    samples: u64,
    /// Heads of queries.
    heads: u64,
    /// Heads of keys and values. Each serves the same number of heads of queries.
    kv_heads: u64,
    /// Number of queries.
    time: u64,
    keys: u64,
    /// Values of a query in one head.
    depth: u64,
    causal: bool,
    /// Keys that a query sees at most.
    window: u64,
}

impl Sizes {
    /// The sizes for packed queries, keys and values `[batch, time, 3 width]`.
    fn packed(call: &Call<'_>) -> Self {
        let heads = call.scalar(0).max(1);
        let [samples, time, packed] = [0, 1, 2].map(|dim| call.dim(0, dim));
        let (causal, window) = (call.scalar(1) == 1, call.scalar(2));
        Self { samples, heads, kv_heads: heads, time, keys: time, depth: packed / (3 * heads), causal, window }
    }

    /// The sizes for queries `[batch, heads, time, depth]`, keys and values `[batch, kv_heads, keys, depth]`.
    fn grouped(call: &Call<'_>) -> Self {
        let [samples, heads, time, depth] = [0, 1, 2, 3].map(|dim| call.dim(0, dim));
        let [kv_heads, keys] = [1, 2].map(|dim| call.dim(1, dim));
        Self { samples, heads, kv_heads, time, keys, depth, causal: call.scalar(1) == 1, window: call.scalar(2) }
    }

    /// Multiply-adds of one product over all pairs of a query and a key, or over the blocks that a mask by position leaves.
    fn product(&self) -> f64 {
        let (time, keys) = (self.time as f64, self.keys as f64);
        let seen = if self.causal { (0.5 * (time + QUERIES as f64)).min(keys) } else { keys };
        // A block of queries sees a window and its own length, and its first and last blocks of keys are computed whole.
        let seen = seen.min(self.window as f64 + (QUERIES + KEYS) as f64);
        (self.samples * self.heads) as f64 * time * seen * self.depth as f64
    }

    /// Queries, keys and depth of a head.
    fn of_head(&self) -> [usize; 3] {
        [self.time, self.keys, self.depth].map(|size| size as usize)
    }

    /// Bytes of `scores` tensors of the scores of a block, and of `rows` rows of a head's depth for each query of each head of the samples
    /// of a block.
    fn of_block(&self, scores: u64, rows: u64) -> u64 {
        let Self { samples, heads, time, keys, depth, .. } = *self;
        let row = heads.saturating_mul(4 * keys).max(1);
        let together = (SCORES as u64 / row.saturating_mul(time).max(1)).clamp(1, samples.max(1));
        let queries = (SCORES as u64 / row.saturating_mul(together)).clamp(1, time.max(1));
        let block = row.saturating_mul(together).saturating_mul(queries);
        block.saturating_mul(scores).saturating_add(4 * rows * together * time * heads * depth)
    }

    /// In f32 the gradient of the scores is joined with the operations that read it. `half` says that 16 bits are read.
    fn of_backward_block(&self, half: bool) -> u64 {
        if half { self.of_block(3, 8) } else { self.of_block(2, 7) }
    }
}

/// Whether scores stay in the shared memory of a GPU.
fn in_shared_memory(sizes: &Sizes, call: &Call<'_>, gpu: &Gpu) -> bool {
    has_kernels(gpu, call.inputs.first().map_or(DType::F32, |input| input.dtype), sizes.depth as usize)
}

fn gpu_forward(sizes: &Sizes, call: &Call<'_>, gpu: &Gpu) -> u64 {
    if in_shared_memory(sizes, call, gpu) { 0 } else { sizes.of_block(2, 4) }
}

/// One value of each query in the kernels.
fn gpu_backward(sizes: &Sizes, call: &Call<'_>, gpu: &Gpu) -> u64 {
    match in_shared_memory(sizes, call, gpu) {
        true => 4 * sizes.samples * sizes.heads * sizes.time,
        false => sizes.of_backward_block(call.reads_half(0)),
    }
}

/// Queries of a span and of a block, and keys of a block on the CPU device, with those that fill a vector.
pub(super) fn blocks(time: usize, keys: usize) -> [usize; 4] {
    let keys = KEYS.min(keys);
    [SPAN.min(time), QUERIES.min(time), keys, keys.next_multiple_of(LANES)]
}

/// Values of a thread's buffers of the forward pass: queries, output, largest scores, keys, values and scores.
pub(super) fn forward_lengths([time, keys, depth]: [usize; 3]) -> [usize; 6] {
    let [span, queries, keys, lanes] = blocks(time, keys);
    [span * depth, span * depth, span, lanes * depth, keys * depth, queries * lanes]
}

/// Values of a thread's buffers of the backward pass: queries, their gradient, the output's gradient, products, keys, keys and values by
/// columns, scores and their changes, and the gradients of keys and values.
pub(super) fn backward_lengths([time, keys, depth]: [usize; 3]) -> [usize; 11] {
    let ([span, queries, block, lanes], all) = (blocks(time, keys), keys * depth);
    let (of_span, of_lanes, scores) = (span * depth, lanes * depth, queries * lanes);
    [of_span, of_span, of_span, span, block * depth, of_lanes, of_lanes, scores, scores, all, all]
}

/// Bytes that a thread's products pack: of blocks of keys that are not whole vectors, and of such heads.
fn packed(sizes: &Sizes, cpu: &Cpu, backward: bool) -> u64 {
    let [time, keys, depth] = sizes.of_head();
    let [_, queries, block, _] = blocks(time, keys);
    let product = |sizes: [usize; 3], left_rows| cpu.packed(sizes.map(|size| size as u64), left_rows);
    let of_block = |keys| {
        let rows = product([queries, depth, keys], true).max(product([queries, keys, depth], true));
        if backward { rows.max(product([keys, queries, depth], false)) } else { rows }
    };
    // A block of queries that sees some of more keys has any number of them.
    let any = if sizes.causal && time != keys { block.min(KEYS - 1) } else { 0 };
    [block, keys % KEYS, any].into_iter().map(of_block).max().unwrap_or(0)
}

/// Bytes of the tasks of a direction, and of the buffers of the threads.
fn of_tasks(sizes: &Sizes, call: &Call<'_>, cpu: &Cpu, (tasks, task, values): (u64, u64, usize), packed: u64) -> u64 {
    let [time, keys, _] = sizes.of_head();
    let [_, queries, ..] = blocks(time, keys);
    let of_thread = (size_of::<f32>() * values + size_of::<usize>() * queries) as u64 + packed;
    tasks * task + cpu.of_tasks(tasks, of_thread) + call.widened(tasks, sizes.depth, cpu)
}

fn forward(sizes: &Sizes, call: &Call<'_>, cpu: &Cpu) -> u64 {
    let tasks = sizes.samples * sizes.heads * sizes.time.div_ceil(SPAN as u64);
    let values = forward_lengths(sizes.of_head()).iter().sum();
    of_tasks(sizes, call, cpu, (tasks, TASK_BYTES[0], values), packed(sizes, cpu, false))
}

fn backward(sizes: &Sizes, call: &Call<'_>, cpu: &Cpu) -> u64 {
    let values = backward_lengths(sizes.of_head()).iter().sum();
    let tasks = sizes.samples * sizes.kv_heads;
    of_tasks(sizes, call, cpu, (tasks, TASK_BYTES[1], values), packed(sizes, cpu, true))
}

#[cfg(test)]
mod tests {
    use kiln_operations::Operand;

    use super::*;

    #[test]
    fn a_gpu_whose_planes_no_kernel_takes_has_the_scores_of_a_block_in_memory() {
        let (samples, heads, time, depth) = (8, 4, 128, 32);
        let shape = [samples, time, 3 * heads * depth];
        let qkv = Operand { shape: &shape, dtype: DType::F32, bytes: 0, strides: &[] };
        let scalars = [heads as i64, 1, i64::MAX];
        let call = Call { inputs: vec![qkv], outputs: vec![], scalars: &scalars };
        let cuda = Gpu { plane: 32, shared_bytes: SHARED as u64, largest_buffer: u64::MAX, smallest_int: 1 };
        let both = |gpu: Gpu| [(PACKED.gpu_scratch)(&call, &gpu), (PACKED_BACKWARD.gpu_scratch)(&call, &gpu)];
        assert_eq!(both(cuda), [0, (4 * samples * heads * time) as u64]);
        for gpu in [Gpu { plane: 0, ..cuda }, Gpu { plane: 64, ..cuda }, Gpu { shared_bytes: 32 << 10, ..cuda }] {
            let [forward, backward] = both(gpu);
            assert!(forward >= SCORES as u64 && backward >= forward, "{gpu:?}: {forward} {backward}");
        }
    }
}
