//! Multiply-adds of operations, and sizes from which both their work and their memory follow.

use super::operation::Operation;

/// Sizes of attention.
pub(super) struct Attention {
    pub(super) samples: u64,
    /// Heads of queries.
    pub(super) heads: u64,
    /// Heads of keys and values. Each serves the same number of heads of queries.
    pub(super) shared: u64,
    /// Number of queries.
    pub(super) time: u64,
    pub(super) keys: u64,
    /// Values of a query in one head.
    pub(super) depth: u64,
    causal: bool,
}

impl Attention {
    /// Queries of a block of the kernel on the CPU device.
    pub(super) const QUERIES: u64 = 128;

    /// The sizes for packed queries, keys and values `[batch, time, 3 width]`.
    pub(super) fn packed(operation: &Operation<'_>) -> Self {
        let heads = operation.scalar(0).max(1);
        let [samples, time, packed] = [0, 1, 2].map(|dim| operation.dim(0, dim));
        let causal = operation.scalar(1) == 1;
        Self { samples, heads, shared: heads, time, keys: time, depth: packed / (3 * heads), causal }
    }

    /// The sizes for queries `[batch, heads, time, depth]`, keys and values `[batch, shared heads, keys, depth]`.
    pub(super) fn grouped(operation: &Operation<'_>) -> Self {
        let [samples, heads, time, depth] = [0, 1, 2, 3].map(|dim| operation.dim(0, dim));
        let [shared, keys] = [1, 2].map(|dim| operation.dim(1, dim));
        Self { samples, heads, shared, time, keys, depth, causal: operation.scalar(1) == 1 }
    }

    /// Multiply-adds of one product over all pairs of a query and a key, or over the blocks that a causal mask leaves.
    pub(super) fn product(&self) -> f64 {
        let (time, keys) = (self.time as f64, self.keys as f64);
        let seen = if self.causal { (0.5 * (time + Self::QUERIES as f64)).min(keys) } else { keys };
        (self.samples * self.heads) as f64 * time * seen * self.depth as f64
    }
}

/// Multiply-adds of the logits of hidden rows `[rows, width]` by a weight `[width, classes]`.
pub(super) fn logits(operation: &Operation<'_>) -> f64 {
    operation.elements(0) as f64 * operation.dim(1, 1) as f64
}

/// Multiply-adds of the logits, and of the gradients of hidden rows and weight. A gradient that is not wanted has no elements.
pub(super) fn logits_and_gradients(operation: &Operation<'_>) -> f64 {
    let wanted = [1, 2].into_iter().filter(|output| operation.out_elements(*output) > 0).count();
    logits(operation) * (1 + wanted) as f64
}

/// Multiply-adds of rows `[.., inputs]` by a weight `[inputs, outputs]`.
pub(super) fn linear(operation: &Operation<'_>, weight: usize) -> f64 {
    operation.elements(0) as f64 * operation.dim(weight, 1) as f64
}

/// Multiply-adds of a convolution, from the elements of output and weight and the number of output channels. Each output element is a sum
/// over a patch.
pub(super) fn conv2d(output: u64, weight: u64, channels: u64) -> f64 {
    output as f64 * weight as f64 / channels.max(1) as f64
}
