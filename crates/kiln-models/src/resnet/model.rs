//! The network: stem, residual blocks and classifier.

use burn::module::Module;
use burn::nn::conv::Conv2d;
use burn::nn::pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig, MaxPool2d, MaxPool2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::{Device, Tensor};

use super::block::{ResNetBlock, StemLayers};
use super::config::{ResNetConfig, Stem};
use super::residual::{ResidualBlock, conv};
use crate::Error;
use crate::layer;

/// A residual network for image classification. Build one with [`ResNetConfig`].
///
/// Fields have torchvision's names, so that the paths of parameters are the names in torchvision's files.
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
    lean: bool,
}

impl ResNetConfig {
    /// Builds the model on `device` with torchvision's initialisation: He-normal by fan-out for convolutions (He et al. 2015b),
    /// ones and zeros for batch-norm.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] when `classes`, `channels` or `width` is 0 or too large to be addressed.
    pub fn init(&self, device: &Device) -> Result<ResNet, Error> {
        self.check()?;
        let (kernel, stride) = match self.stem {
            Stem::ImageNet => (7, 2),
            Stem::Cifar => (3, 1),
        };
        let mut channels = self.width;
        let mut stage = |number: usize| {
            let (inner, out) = (self.width << number, self.stage(number));
            (0..self.stages()[number])
                .map(|i| {
                    let stride = if i == 0 && number > 0 { 2 } else { 1 };
                    let block = ResidualBlock::new([channels, inner, out], stride, self, device);
                    channels = out;
                    block
                })
                .collect()
        };
        let (layer1, layer2, layer3, layer4) = (stage(0), stage(1), stage(2), stage(3));
        Ok(ResNet {
            conv1: conv([self.channels, self.width], kernel, stride, device),
            bn1: BatchNormConfig::new(self.width).init(device),
            maxpool: (self.stem == Stem::ImageNet).then(|| {
                MaxPool2dConfig::new([3, 3])
                    .with_strides([2, 2])
                    .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
                    .init()
            }),
            layer1,
            layer2,
            layer3,
            layer4,
            avgpool: AdaptiveAvgPool2dConfig::new([1, 1]).init(),
            fc: LinearConfig::new(channels, self.classes).init(device),
            lean: self.lean,
        })
    }
}

impl ResNet {
    fn residual_blocks(&self) -> impl Iterator<Item = &ResidualBlock> {
        [&self.layer1, &self.layer2, &self.layer3, &self.layer4].into_iter().flatten()
    }

    fn stem(&self) -> StemLayers {
        let (conv1, bn1, maxpool) = (self.conv1.clone(), self.bn1.clone(), self.maxpool.clone());
        StemLayers { conv1, bn1, maxpool, lean: self.lean }
    }

    /// The stem and the residual blocks, first to last. They turn images `[B, C, H, W]` (normalised floats) into the features that
    /// [`head`](Self::head) reads. They are handles to this network's parameters and running statistics, not copies.
    pub fn blocks(&self) -> Vec<ResNetBlock> {
        std::iter::once(ResNetBlock::Stem(self.stem()))
            .chain(self.residual_blocks().cloned().map(ResNetBlock::Residual))
            .collect()
    }

    /// Turns the features of the last block into logits `[B, classes]`.
    pub fn head(&self, x: Tensor<4>) -> Tensor<2> {
        layer::linear(&self.fc, self.avgpool.forward(x).flatten(1, 3))
    }

    /// Turns images `[B, C, H, W]` (normalised floats) into logits `[B, classes]`.
    pub fn forward(&self, images_bchw: Tensor<4>) -> Tensor<2> {
        let x = self.stem().forward(images_bchw);
        let x = self.residual_blocks().fold(x, |x, block| block.forward(x));
        self.head(x)
    }
}
