//! The cost of SwiGLU.

use kiln_operations::{Call, Cost, Cpu};

/// Values of a task.
pub(super) const CHUNK: usize = 8 * 1024;

pub(super) static FORWARD: Cost = Cost { cpu_scratch: scratch, by_sample: true, ..Cost::new("kiln::swiglu") };

/// Inputs: gate, up, gradient.
pub(super) static BACKWARD: Cost =
    Cost { in_place: &[(0, 0), (2, 1)], cpu_scratch: scratch, by_sample: true, ..Cost::new("kiln::swiglu_backward") };

/// Three buffers for each thread.
fn scratch(call: &Call<'_>, cpu: &Cpu) -> u64 {
    call.chunks(CHUNK, 3, cpu)
}
