//! Softmax over the last dimension.

mod composed;
#[cfg(feature = "flex")]
mod flex;
mod functions;
mod graph;

pub use functions::softmax;
