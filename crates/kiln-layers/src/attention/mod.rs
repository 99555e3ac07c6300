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

pub use functions::{attention, self_attention};
pub(crate) use functions::{grouped_terms, packed_terms};
pub(crate) use graph::{grouped, grouped_backward, packed, packed_backward};
pub use module::{MultiHeadAttention, MultiHeadAttentionConfig};
pub use options::{AttentionOptions, DropoutSeed, Mask};
pub(crate) use terms::{Settings, Sizes};
