//! The convolution of a doubled image and another of its size.

mod functions;
mod graph;
mod phases;
mod steps;

pub use functions::upsample_conv2d;
