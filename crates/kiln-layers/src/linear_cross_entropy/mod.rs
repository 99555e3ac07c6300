//! The cross-entropy of a linear output layer. The logits of the whole batch are never in memory.

mod composed;
#[cfg(feature = "flex")]
mod flex;
mod functions;
mod graph;
#[cfg(feature = "flex")]
mod row;
#[cfg(feature = "flex")]
mod scale;
mod settings;
#[cfg(feature = "flex")]
mod weight;

pub use functions::LinearCrossEntropy;
pub(crate) use settings::LossOptions;
pub use settings::Reduction;
