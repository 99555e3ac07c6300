//! ShuffleNetV2: Ma et al. 2018, as torchvision builds it.

mod block;
mod config;
mod model;

pub use block::{ConvRelu, ShuffleBlock, ShuffleNetV2Block};
pub use config::ShuffleNetV2Config;
pub use model::ShuffleNetV2;
