//! The cost of SwiGLU.

use kiln_operations::{Call, Cost, Cpu};

/// Values of a task.
pub(super) const CHUNK: usize = 8 * 1024;

pub(super) static FORWARD: Cost = Cost { flex: scratch, cube: |call| call.wide(0, 3), ..Cost::new("kiln::swiglu") };

/// Inputs: gate, up, gradient.
pub(super) static BACKWARD: Cost =
    Cost { over: &[(0, 0), (2, 1)], flex: scratch, cube: |call| call.wide(0, 5), ..Cost::new("kiln::swiglu_backward") };

/// Three buffers for each thread. They are counted as two tasks long, which is an upper bound.
fn scratch(call: &Call<'_>, cpu: &Cpu) -> u64 {
    call.chunks(2 * CHUNK, 3, cpu)
}
