//! Batch norm, ReLU and the convolution after them in one operation, and with what ends a residual block.

mod functions;
mod graph;
mod residual_end;

pub use functions::{batch_norm_relu_conv2d, residual_end};
