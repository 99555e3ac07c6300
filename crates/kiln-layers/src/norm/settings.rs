//! The settings and the cost of norms over the last dimension.

use kiln_operations::{Call, Cost, Cpu};

/// The settings of a norm, without its parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct NormSettings {
    /// The number that is added to the variance.
    pub(crate) epsilon: f32,
    /// Whether the mean is subtracted.
    pub(crate) centred: bool,
}

/// The widest rows that the kernel in CubeCL takes.
pub(super) const WIDEST_ON_GPU: usize = 16 * 1024;
/// The most cubes of a backward pass in CubeCL: enough for all multiprocessors of large GPUs.
pub(super) const GROUPS_ON_GPU: usize = 256;
/// Rows of a task.
pub(super) const ROWS: usize = 8;
/// Number of partial sums of the parameters' gradients.
pub(super) const GROUPS: usize = 16;

/// Inputs: x, weight, bias.
pub(super) static FORWARD: Cost =
    Cost { cpu_scratch: forward, gpu_scratch: |call, _| on_gpu(call, 0), by_sample: true, ..Cost::new("kiln::norm") };

/// Inputs: x, statistics, weight, gradient, and the sums of the gradients of weight and bias.
pub(super) static BACKWARD_ONTO: Cost =
    Cost { id: "kiln::norm_backward_onto", in_place: &[(3, 0), (4, 1), (5, 2)], ..BACKWARD };

/// Inputs: x, statistics, weight, gradient.
pub(super) static BACKWARD: Cost = Cost {
    in_place: &[(3, 0)],
    cpu_scratch: backward,
    gpu_scratch: |call, _| on_gpu(call, 2 * GROUPS_ON_GPU as u64),
    by_sample: true,
    ..Cost::new("kiln::norm_backward")
};

/// `rows` rows of f32 in the kernel in CubeCL, at most as many as the input has twice, and two tensors of the input's size where rows are
/// too wide for it.
fn on_gpu(call: &Call<'_>, rows: u64) -> u64 {
    let width = call.dim_from_end(0, 0);
    if width > WIDEST_ON_GPU as u64 { call.wide(0, 2) } else { (4 * rows * width).min(call.wide(0, 2)) }
}

/// Buffers of some rows. Weight and bias are copied.
fn forward(call: &Call<'_>, cpu: &Cpu) -> u64 {
    let (width, together) = (call.dim_from_end(0, 0), ROWS as u64);
    let rows = call.elements(0) / width.max(1);
    4 * (2 * width) + call.widened(rows.div_ceil(together), 2 * together.min(rows) * width, cpu)
}

/// Buffers of some rows, and the gradients of weight and bias for each group of rows.
fn backward(call: &Call<'_>, cpu: &Cpu) -> u64 {
    let width = call.dim_from_end(0, 0);
    let rows = call.elements(0) / width.max(1);
    let groups = rows.div_ceil(rows.div_ceil(GROUPS as u64).max(1));
    let row = cpu.of_threads(groups, width) + call.widened(groups, 2 * width, cpu);
    // After the rows, the sums of all groups exist, and a copy of one of them.
    let sums = 4 * (3 * width);
    4 * width + 4 * (2 * width) * groups + row.max(sums)
}
