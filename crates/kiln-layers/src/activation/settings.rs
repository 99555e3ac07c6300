//! The activations, and their cost.

use kiln_operations::Cost;

/// An elementwise activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Activation {
    /// x Φ(x) with the normal distribution function Φ; see [`gelu`](crate::gelu).
    Gelu,
    /// GELU's tanh approximation; see [`gelu_tanh`](crate::gelu_tanh).
    GeluTanh,
    /// x sigmoid(x); see [`silu`](crate::silu).
    Silu,
    /// max(x, 0); see [`relu`](crate::relu).
    Relu,
}

/// Values of a task: input and output stay in a core's second-level cache.
pub(super) const CHUNK: usize = 16 * 1024;

pub(super) static FORWARD: Cost = Cost {
    cpu_scratch: |call, cpu| call.chunks(CHUNK, 2, cpu),
    gpu_scratch: |call| call.wide(0, 2),
    ..Cost::new("kiln::activation")
};

/// Inputs: what is kept, gradient.
pub(super) static BACKWARD: Cost = Cost {
    in_place: &[(1, 0)],
    cpu_scratch: |call, cpu| call.chunks(CHUNK, 2, cpu),
    gpu_scratch: |call| call.wide(0, 5),
    ..Cost::new("kiln::activation_backward")
};
