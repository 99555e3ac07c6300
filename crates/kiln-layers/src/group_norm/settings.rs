//! The settings and the cost of group norm.

use kiln_operations::{Call, Cost, Cpu};

/// The settings of a group norm, without its parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct GroupNormSettings {
    /// Groups of channels.
    pub(crate) groups: usize,
    /// The number that is added to the variance.
    pub(crate) epsilon: f32,
}

/// Inputs: x, weight, bias. On a GPU a tensor that is not stored in the order of its dimensions is copied.
pub(super) static FORWARD: Cost =
    Cost { cpu_scratch: scratch, gpu_scratch: |call, _| call.bytes(0), ..Cost::new("kiln::group_norm") };

/// Inputs: x, statistics, weight, gradient.
pub(super) static BACKWARD: Cost = Cost {
    in_place: &[(3, 0)],
    cpu_scratch: scratch,
    gpu_scratch: |call, _| call.bytes(0) + call.bytes(3) + 8 * call.dim(0, 0) * call.dim(0, 1),
    ..Cost::new("kiln::group_norm_backward")
};

/// Two values of each channel of each sample, and two buffers of a channel's values for each thread.
fn scratch(call: &Call<'_>, cpu: &Cpu) -> u64 {
    let channels = call.dim(0, 0) * call.dim(0, 1);
    4 * (2 * channels) + call.widened(channels, 2 * call.elements(0) / channels.max(1), cpu)
}
