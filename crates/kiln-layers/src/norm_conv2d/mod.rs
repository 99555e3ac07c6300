//! Batch norm, ReLU and the convolution after them in one operation, on burn's modules.

mod functions;
mod graph;

pub use functions::batch_norm_relu_conv2d;
