//! SwiGLU.

mod composed;
#[cfg(feature = "flex")]
mod flex;
mod functions;
mod graph;

pub use functions::swiglu;
