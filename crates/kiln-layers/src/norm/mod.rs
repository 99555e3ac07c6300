//! Layer norm and RMS norm over the last dimension, on burn's modules.

pub(crate) mod composed;
#[cfg(feature = "flex")]
pub(crate) mod flex;
mod functions;
mod graph;
#[cfg(feature = "flex")]
pub(crate) mod rows;
mod settings;

pub use functions::{Norm, layer_norm, rms_norm};
pub(crate) use graph::statistics_like;
pub(crate) use settings::NormSettings;
