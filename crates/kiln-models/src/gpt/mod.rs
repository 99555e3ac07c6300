//! A GPT-2-style decoder: Radford et al. 2019, as transformers builds it.

mod block;
mod config;
mod model;

pub use block::{GptBlock, GptHalf};
pub use config::GptConfig;
pub use model::Gpt;
