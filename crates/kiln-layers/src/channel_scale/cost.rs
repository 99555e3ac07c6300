//! The cost of the product of each plane and a number.

use kiln_operations::{Call, Cost, Cpu};

/// Inputs: x, scale.
pub(super) static FORWARD: Cost = Cost {
    over: &[(0, 0)],
    flex: |call, cpu| scratch(call, 1, cpu),
    cube: |call| call.wide(0, 2),
    ..Cost::new("kiln::channel_scale")
};

/// Inputs: x, scale, gradient.
pub(super) static BACKWARD: Cost = Cost {
    over: &[(2, 0)],
    flex: |call, cpu| scratch(call, 2, cpu),
    cube: |call| call.wide(0, 2),
    ..Cost::new("kiln::channel_scale_backward")
};

/// `count` f32 values for each plane of `[images, channels, height, width]`, and as many buffers of a plane for each thread.
fn scratch(call: &Call<'_>, count: u64, cpu: &Cpu) -> u64 {
    let planes = call.dim(0, 0) * call.dim(0, 1);
    4 * (count * planes) + call.widened(planes, count * call.elements(0) / planes.max(1), cpu)
}
