//! The cost of dropout.

use kiln_operations::Cost;

/// Values of a task.
pub(super) const CHUNK: usize = 16 * 1024;

/// The cost in both directions.
pub(super) static DROPOUT: Cost = Cost {
    over: &[(0, 0)],
    flex: |call, cpu| call.chunks(CHUNK, 1, cpu),
    cube: |call| call.wide(0, 2),
    ..Cost::new("kiln::dropout")
};
