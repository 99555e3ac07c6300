//! Residual addition and the ReLU after it.

mod composed;
mod cost;
#[cfg(feature = "flex")]
mod flex;
mod functions;
mod graph;

pub use functions::add_relu;
