//! U-Net: semantic segmentation with a classifier's blocks as its encoder.

mod block;
mod config;
mod decoder;
mod encoder;
mod model;

pub use block::UnetBlock;
pub use config::{UnetConfig, UnetEncoder};
pub use decoder::DecoderBlock;
pub use encoder::{EncoderBlock, EncoderLayers};
pub use model::Unet;
