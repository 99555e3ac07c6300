//! MobileNetV3-Large: Howard et al. 2019, as torchvision builds it.

mod block;
mod config;
mod model;

pub use block::{ConvHardSwish, InvertedResidualV3, MobileNetV3Block};
pub use config::MobileNetV3Config;
pub use model::MobileNetV3;
