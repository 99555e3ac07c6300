//! The layers compared with plain formulas in burn's own operations, on the CPU device.
#![allow(clippy::unwrap_used, reason = "a test ends at what goes wrong")]

mod activations;
mod add_relu;
mod attention;
mod attention_dropout;
mod batch_norm;
mod compare;
mod conformance;
mod conv2d;
mod cuts;
mod decoder_block;
mod dropout;
mod group_norm;
mod in_order;
mod linear;
mod linear_cross_entropy;
mod low_rank;
mod max_pool;
mod multi_head_attention;
mod norm;
mod norm_conv2d;
mod projected_attention;
mod refused;
mod rotary;
mod row_weight;
mod softmax;
mod swiglu;
mod threads;
mod torch;
mod upsample_conv2d;
