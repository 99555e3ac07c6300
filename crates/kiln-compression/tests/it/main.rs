//! Tests of the public interface.
#![allow(clippy::unwrap_used, reason = "a test ends at what goes wrong")]

mod distill;
mod fake_quant;
mod fake_quant_reference;
mod four_bits;
mod lora;
mod lora_bases;
mod lora_files;
mod lora_training;
mod nest;
mod prune_channels;
mod prune_weights;
mod quantize_file;
mod quantize_model;
mod quantize_net;
mod quantize_reference;
mod reparameterized;
