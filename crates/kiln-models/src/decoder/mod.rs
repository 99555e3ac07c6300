//! Any decoder of this crate, and what generates text with one.

mod blocks;
mod config;
mod hugging_face;
mod model;
mod parts;
mod reader;
mod sampling;

pub use blocks::{DecoderBlock, DecoderHalf};
pub use config::DecoderConfig;
pub use model::Decoder;
pub use parts::DecoderParts;
pub use reader::DecoderReader;
pub use sampling::Sampling;
