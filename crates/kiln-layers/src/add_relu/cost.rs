//! The cost of addition and ReLU.

use kiln_operations::{Call, Cost, Cpu};

/// Values of a piece.
pub(super) const PIECE: usize = 4096;

pub(super) static FORWARD: Cost =
    Cost { over: &[(0, 0)], flex: scratch, cube: |call| call.wide(0, 2), ..Cost::new("kiln::add_relu") };

/// Inputs: output, gradient.
pub(super) static BACKWARD: Cost =
    Cost { over: &[(1, 0)], flex: scratch, cube: |call| call.wide(0, 2), ..Cost::new("kiln::add_relu_backward") };

/// Buffers of a piece of both inputs and of the output for each thread.
fn scratch(call: &Call<'_>, cpu: &Cpu) -> u64 {
    call.chunks(PIECE, 3, cpu)
}
