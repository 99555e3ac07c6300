//! 2-D convolution on burn's module.

mod composed;
#[cfg(feature = "flex")]
mod correlation;
#[cfg(feature = "flex")]
mod flex;
mod functions;
mod graph;
mod parameters;
#[cfg(feature = "flex")]
mod plan;
mod settings;
#[cfg(feature = "flex")]
mod tile;
#[cfg(feature = "flex")]
mod weight;

pub use functions::conv2d;
pub(crate) use functions::convolution;
pub(crate) use graph::{Conv2dKernels, gradients};
pub(crate) use parameters::Convolution;
pub(crate) use settings::Geometry;
