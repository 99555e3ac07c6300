//! MobileNetV2 (Sandler et al. 2018) and MobileNetV3-Large (Howard et al. 2019), as torchvision builds them.

mod block;
mod config;
mod model;

pub use block::{InvertedResidual, MobileNetBlock};
pub use config::{MobileNetV2Config, MobileNetV3Config};
pub use model::MobileNet;
