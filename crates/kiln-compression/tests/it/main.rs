//! Tests of the public interface.

mod fake_quant;
mod lora;
mod prune_channels;
mod prune_weights;
