//! The cost of batch norm.

use kiln_operations::{Call, Cost, Cpu};

/// The number of consecutive values of a sample that a task has at least, if the tensor has as many. Small planes are taken several at a
/// time.
pub(super) const RUN: usize = 512;
/// The most values of a piece, so that a piece and its factors and sums stay in a core's first-level cache.
pub(super) const PIECE: usize = 1024;

/// Inputs: x, weight, bias, mean, variance, maybe a residual. Scalars: whether it trains, whether hard-swish follows.
pub(super) static FORWARD: Cost = Cost {
    over: &[(0, 0)],
    flex: scratch,
    cube: |call| call.wide(0, 3 + 2 * call.scalar(1)),
    ..Cost::new("kiln::batch_norm")
};

/// Inputs: x, statistics, weight, bias. Scalar: whether hard-swish follows.
pub(super) static AGAIN: Cost =
    Cost { flex: scratch, cube: |call| call.wide(0, 2 + 2 * call.scalar(0)), ..Cost::new("kiln::batch_norm_again") };

/// Inputs: gradient, saved tensors. The residual's gradient takes the memory of the output's.
pub(super) static BACKWARD: Cost = Cost {
    over: &[(0, 3), (0, 0)],
    flex: scratch,
    cube: |call| call.wide(0, 3 + 2 * call.scalar(1)),
    ..Cost::new("kiln::batch_norm_backward")
};

/// A slice for each sample of a block of channels, and at most 64 KiB for each thread.
fn scratch(call: &Call<'_>, cpu: &Cpu) -> u64 {
    const BUFFERS: u64 = 16 * PIECE as u64;
    let (samples, channels) = (call.dim(0, 0), call.dim(0, 1));
    let plane = call.elements(0) / (samples * channels).max(1);
    let blocks = channels.div_ceil((RUN as u64 / plane.max(1)).max(1));
    // For each channel: its parameters and statistics, and its sums in f64.
    16 * samples * blocks + 4 * (24 * channels) + call.widened(blocks * samples, BUFFERS, cpu)
}
