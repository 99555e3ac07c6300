//! The kinds of activations.

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
