//! A GPT-2-style decoder: Radford et al. 2019, as transformers builds it.

mod block;
mod config;
mod model;
mod parts;
mod reader;
mod sampling;

pub use block::{GptBlock, GptCache, GptHalf};
pub use config::GptConfig;
pub use model::Gpt;
pub use parts::GptParts;
pub use reader::GptReader;
pub use sampling::Sampling;
