//! Deep residual networks: He et al. 2015, as torchvision builds them.

mod block;
mod config;
mod part;

use burn::module::Module;
use burn::nn::conv::Conv2d;
use burn::nn::pool::{AdaptiveAvgPool2d, MaxPool2d};
use burn::nn::{BatchNorm, Linear};
use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use part::stem;

pub use block::ResidualBlock;
pub use config::ResNetConfig;
pub use part::{ResNetPart, StemLayers};

/// The layers between the image and the first block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stem {
    /// 7x7 convolution of stride 2 and a max-pool: for images of about 224 pixels.
    #[default]
    ImageNet,
    /// 3x3 convolution of stride 1: for images of about 32 pixels.
    Cifar,
}

/// A residual network for image classification. Build one with [`ResNetConfig`].
///
/// Fields carry torchvision's names, so that parameter paths are checkpoint names.
#[derive(Module, Debug)]
pub struct ResNet {
    conv1: Conv2d,
    bn1: BatchNorm,
    maxpool: Option<MaxPool2d>,
    layer1: Vec<ResidualBlock>,
    layer2: Vec<ResidualBlock>,
    layer3: Vec<ResidualBlock>,
    layer4: Vec<ResidualBlock>,
    avgpool: AdaptiveAvgPool2d,
    fc: Linear,
}

impl ResNet {
    /// Images `[B, C, H, W]` (normalised floats) to the features that the first block reads, in the dtype of
    /// the weights.
    pub fn stem(&self, images_bchw: Tensor<4>) -> Tensor<4> {
        stem(&self.conv1, &self.bn1, &self.maxpool, images_bchw)
    }

    /// The residual blocks, first to last.
    pub fn blocks(&self) -> impl Iterator<Item = &ResidualBlock> {
        [&self.layer1, &self.layer2, &self.layer3, &self.layer4].into_iter().flatten()
    }

    /// The stem and the blocks as one chain, first to last, for a caller that runs them by another plan. They hold handles to
    /// this network's parameters and running statistics, not copies.
    pub fn parts(&self) -> Vec<ResNetPart> {
        let Self { conv1, bn1, maxpool, .. } = self.clone();
        let stem = ResNetPart::Stem(StemLayers { conv1, bn1, maxpool });
        std::iter::once(stem).chain(self.blocks().cloned().map(ResNetPart::Block)).collect()
    }

    /// Features of the last block to logits `[B, classes]`.
    pub fn head(&self, x: Tensor<4>) -> Tensor<2> {
        self.fc.forward(self.avgpool.forward(x).flatten(1, 3))
    }

    /// Images `[B, C, H, W]` (normalised floats) to logits `[B, classes]`.
    pub fn forward(&self, images_bchw: Tensor<4>) -> Tensor<2> {
        let x = self.blocks().fold(self.stem(images_bchw), |x, block| block.forward(x));
        self.head(x)
    }
}
