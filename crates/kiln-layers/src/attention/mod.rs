//! Attention that never has the whole matrix of scores in memory.

mod composed;
mod cost;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;
mod functions;
mod graph;
mod module;
mod options;
mod terms;

pub(crate) use functions::packed_terms;
pub use functions::{attention, self_attention};
pub(crate) use graph::{packed, packed_backward};
pub use module::{MultiHeadAttention, MultiHeadAttentionConfig};
pub use options::{AttentionOptions, DropoutSeed, Mask};
pub(crate) use terms::Settings;
