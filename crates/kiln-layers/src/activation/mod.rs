//! Activations that keep one tensor for the backward pass.

pub(crate) mod composed;
#[cfg(feature = "flex")]
pub(crate) mod flex;
mod functions;
mod graph;
mod settings;

pub use functions::{gelu, gelu_tanh, relu, silu};
pub use settings::Activation;
