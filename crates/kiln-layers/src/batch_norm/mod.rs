//! Batch norm on burn's module, alone and with the activation and the residual after it.

#[cfg(feature = "flex")]
mod again;
#[cfg(feature = "flex")]
mod blocks;
#[cfg(feature = "flex")]
mod channel;
mod composed;
#[cfg(feature = "flex")]
mod flex;
mod functions;
mod graph;
mod parameters;
#[cfg(feature = "flex")]
mod pieces;
mod settings;

pub(crate) use functions::Pass;
pub use functions::{batch_norm, batch_norm_activated, batch_norm_add_relu, batch_norm_leaky_relu, batch_norm_relu};
pub(crate) use graph::BatchNormKernels;
pub(crate) use parameters::BatchNormParameters;
pub use settings::NormActivation;
pub(crate) use settings::{BatchNormOutput, BatchNormSaved, NormSettings};
