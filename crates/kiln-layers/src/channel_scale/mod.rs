//! The product of each plane of an image and a number: the end of squeeze-and-excitation.

mod composed;
#[cfg(feature = "flex")]
mod flex;
mod kernels;

pub(crate) use kernels::ChannelScaleKernels;
