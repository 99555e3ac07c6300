//! Softmax over the last dimension.

mod composed;
mod cost;
#[cfg(feature = "flex")]
mod flex;
mod functions;
mod graph;

pub use functions::softmax;
