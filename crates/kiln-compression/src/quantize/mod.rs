//! Quantisation of weights and activations.

mod blocks;
mod codes;
mod weights;

pub use blocks::{Blocks, Granularity};
pub use codes::WeightRange;
pub use weights::QuantizedWeight;
