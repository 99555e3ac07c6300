//! The cost of rotary position embedding.

use kiln_operations::{Call, Cost, Cpu};

pub(super) static FORWARD: Cost =
    Cost { over: &[(0, 0)], flex: scratch, cube: |call| call.wide(0, 2), ..Cost::new("kiln::rotary") };

pub(super) static BACKWARD: Cost = Cost { id: "kiln::rotary_backward", ..FORWARD };

/// Cosines and sines of each position, and a row for each thread.
fn scratch(call: &Call<'_>, cpu: &Cpu) -> u64 {
    let (time, depth) = (call.dim_from_end(0, 1), call.dim_from_end(0, 0));
    4 * (time * depth) + call.widened(call.elements(0) / depth.max(1), depth, cpu)
}
