//! The activations, and their cost.

use kiln_operations::Cost;

/// An elementwise activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

/// 1 / sqrt(2).
pub(super) const HALF_ROOT: f32 = std::f32::consts::FRAC_1_SQRT_2;
/// 2 sqrt(2 / pi), of the tanh approximation: gelu(x) = x sigmoid(SCALE (x + CUBIC x³)).
pub(super) const SCALE: f32 = 1.595_769_2;
pub(super) const CUBIC: f32 = 0.044_715;
/// 1 / sqrt(2 pi).
pub(super) const DENSITY: f32 = 0.398_942_3;

/// Values of a task: input and output stay in a core's second-level cache.
pub(super) const CHUNK: usize = 16 * 1024;

pub(super) static FORWARD: Cost =
    Cost { cpu_scratch: |call, cpu| call.chunks(CHUNK, 2, cpu), by_sample: true, ..Cost::new("kiln::activation") };

/// Inputs: what is kept, gradient.
pub(super) static BACKWARD: Cost = Cost {
    in_place: &[(1, 0)],
    cpu_scratch: |call, cpu| call.chunks(CHUNK, 2, cpu),
    by_sample: true,
    ..Cost::new("kiln::activation_backward")
};
