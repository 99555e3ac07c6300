//! Decoders of the Llama family: Touvron et al. 2023, as transformers builds Llama, Mistral, Qwen2 and Qwen3.

mod block;
mod config;
mod model;

pub use block::{LlamaBlock, LlamaHalf};
pub use config::{LlamaConfig, Scaling};
pub use model::Llama;
