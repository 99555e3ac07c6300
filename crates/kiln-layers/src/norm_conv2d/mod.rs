//! Batch norm and the convolution before or after it in one operation, squeeze-and-excitation between them, and the end of a residual block.

mod conv_norm;
mod excited;
mod functions;
mod graph;
mod kernels;
mod residual_end;

pub use functions::{
    batch_norm_activated_conv2d, batch_norm_excited_conv2d, batch_norm_relu_conv2d, conv2d_batch_norm,
    conv2d_batch_norm_activated, conv2d_batch_norm_relu, residual_end,
};
