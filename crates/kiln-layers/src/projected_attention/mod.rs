//! A norm, the linear layer that makes queries, keys and values, and self-attention in one operation.

mod functions;
mod graph;

pub use functions::norm_self_attention;
pub(crate) use functions::projected_attention;
