//! MobileNetV2: Sandler et al. 2018, as torchvision builds it.

mod block;
mod config;
mod model;

pub use block::{ConvRelu6, InvertedResidual, MobileNetV2Block};
pub use config::MobileNetV2Config;
pub use model::MobileNetV2;
