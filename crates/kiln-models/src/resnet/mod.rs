//! Deep residual networks: He et al. 2015, as torchvision builds them.

mod block;
mod config;
mod model;
mod residual;

pub use block::{ResNetBlock, StemLayers};
pub use config::{ResNetConfig, Stem};
pub use model::ResNet;
pub use residual::ResidualBlock;
