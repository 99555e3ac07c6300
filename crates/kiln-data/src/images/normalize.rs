//! The mean and standard deviation that images are normalised by.

use serde::{Deserialize, Serialize};

/// Mean and standard deviation per channel, of samples scaled to [0, 1].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Normalize {
    /// One mean per channel.
    pub mean: Vec<f32>,
    /// One standard deviation per channel.
    pub std: Vec<f32>,
}

impl Normalize {
    /// The figures of ImageNet for RGB, which torchvision's weights expect; of Fashion-MNIST otherwise.
    pub fn for_channels(channels: usize) -> Self {
        match channels {
            3 => Self { mean: vec![0.485, 0.456, 0.406], std: vec![0.229, 0.224, 0.225] },
            _ => Self { mean: vec![0.2860; channels], std: vec![0.3530; channels] },
        }
    }
}
