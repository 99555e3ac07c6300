//! Residual addition and the ReLU after it.

mod composed;
#[cfg(feature = "flex")]
mod flex;
mod functions;
mod graph;

pub use functions::add_relu;
