//! The cost of max pooling.

use kiln_operations::{Call, Cost, Cpu};

pub(super) static FORWARD: Cost = Cost { flex: forward, cube: |call| 2 * call.bytes(0), ..Cost::new("kiln::max_pool") };

/// Inputs: positions, gradient.
pub(super) static BACKWARD: Cost =
    Cost { flex: backward, cube: |call| 2 * call.out_bytes(0), ..Cost::new("kiln::max_pool_backward") };

/// Slices of each plane, and some rows for each thread.
fn forward(call: &Call<'_>, cpu: &Cpu) -> u64 {
    let row = call.dim_from_end(0, 0);
    let planes = call.elements(0) / (row * call.dim_from_end(0, 1)).max(1);
    16 * planes + cpu.of_threads(planes, 3 * row)
}

/// A plane of the output for each thread.
fn backward(call: &Call<'_>, cpu: &Cpu) -> u64 {
    let planes = call.dim(0, 0) * call.dim(0, 1);
    call.widened(planes, call.out_elements(0) / planes.max(1), cpu)
}
