//! The convolution of a doubled image joined with another image of its size.

mod functions;
mod graph;
mod phases;
mod steps;

pub use functions::upsample_conv2d;
