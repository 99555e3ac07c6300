//! The cost of softmax.

use kiln_operations::{Call, Cost, Cpu};

/// Values of a task, rounded up to whole rows.
pub(super) const CHUNK: usize = 16 * 1024;

pub(super) static FORWARD: Cost = Cost { flex: scratch, cube: |call| call.wide(0, 2), ..Cost::new("kiln::softmax") };

/// Inputs: output, gradient.
pub(super) static BACKWARD: Cost =
    Cost { over: &[(1, 0)], flex: scratch, cube: |call| call.wide(0, 2), ..Cost::new("kiln::softmax_backward") };

/// Two buffers of a task, or of a row if it is longer.
fn scratch(call: &Call<'_>, cpu: &Cpu) -> u64 {
    let task = (CHUNK as u64).max(call.dim_from_end(0, 0));
    call.widened(call.elements(0).div_ceil(task), 2 * task, cpu)
}
