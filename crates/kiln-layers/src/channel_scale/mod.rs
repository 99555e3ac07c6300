//! The product of each plane of an image and a number: the end of squeeze-and-excitation.

mod composed;
mod cost;
#[cfg(feature = "flex")]
mod flex;
mod kernels;

pub(crate) use kernels::ChannelScaleKernels;
