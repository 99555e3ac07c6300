//! The network: stem, inverted residuals and classifier.

use burn::module::Module;
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::{Device, Tensor};

use super::block::{ConvRelu6, InvertedResidual, MobileNetV2Block};
use super::config::{GROUPS, MobileNetV2Config};
use crate::Error;
use crate::conv_norm::{ConvNorm, ConvShape, he_normal};
use crate::layer;
use crate::resnet::Stem;

/// MobileNetV2 for image classification. Build one with [`MobileNetV2Config`].
///
/// torchvision's dropout before the classifier is left out.
#[derive(Module, Debug)]
pub struct MobileNetV2 {
    stem: ConvNorm,
    blocks: Vec<InvertedResidual>,
    last: ConvNorm,
    classifier: Linear,
    lean: bool,
}

impl MobileNetV2Config {
    /// Builds the model on `device` with torchvision's initialisation: He-normal by fan-out for convolutions, ones and zeros for batch
    /// norm, N(0, 0.01) for the classifier.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for `classes` or `channels` of 0 or too large to be addressed, and a width out of range.
    pub fn init(&self, device: &Device) -> Result<MobileNetV2, Error> {
        self.check()?;
        let layers = |shape| ConvNorm::new(shape, &he_normal(), device);
        let (mut channels, mut small) = (self.scaled(32), self.stem == Stem::Cifar);
        let stem = layers(ConvShape::new([self.channels, channels], 3, if small { 1 } else { 2 }));
        let mut blocks = vec![];
        for group in GROUPS {
            let to = self.scaled(group.channels);
            // Images of about 32 pixels are halved three times, not five.
            let stride = if group.stride == 2 && std::mem::take(&mut small) { 1 } else { group.stride };
            for index in 0..group.blocks {
                let stride = if index == 0 { stride } else { 1 };
                blocks.push(InvertedResidual::new([channels, to], group.expansion, stride, self.lean, device));
                channels = to;
            }
        }
        let normal = Initializer::Normal { mean: 0.0, std: 0.01 };
        let mut classifier = LinearConfig::new(self.features(), self.classes).with_initializer(normal).init(device);
        classifier.bias = Some(Initializer::Zeros.init([self.classes], device));
        Ok(MobileNetV2 {
            stem,
            blocks,
            last: layers(ConvShape::pointwise(channels, self.features())),
            classifier,
            lean: self.lean,
        })
    }
}

impl MobileNetV2 {
    /// The stem, the inverted residuals and the last convolution. They turn images `[B, C, H, W]` (normalised floats) into the features
    /// that [`head`](Self::head) reads. They are handles to this network's parameters and running statistics, not copies.
    pub fn blocks(&self) -> Vec<MobileNetV2Block> {
        let conv = |layers: &ConvNorm| MobileNetV2Block::Conv(ConvRelu6 { layers: layers.clone(), lean: self.lean });
        let inverted = self.blocks.iter().cloned().map(MobileNetV2Block::Inverted);
        std::iter::once(conv(&self.stem)).chain(inverted).chain([conv(&self.last)]).collect()
    }

    /// Turns the features of the last block into logits `[B, classes]`.
    pub fn head(&self, x: Tensor<4>) -> Tensor<2> {
        layer::linear(&self.classifier, x.mean_dims(&[2, 3]).flatten(1, 3))
    }

    /// Turns images `[B, C, H, W]` (normalised floats) into logits `[B, classes]`.
    pub fn forward(&self, images_bchw: Tensor<4>) -> Tensor<2> {
        self.head(self.blocks().iter().fold(images_bchw, |x, block| block.forward(x)))
    }

    /// The paths of layers in this crate and in torchvision's files.
    pub(crate) fn names(&self) -> Vec<(String, String)> {
        let last = self.blocks.len() + 1;
        let mut names =
            [self.stem.names("stem", "features.0"), self.last.names("last", &format!("features.{last}"))].concat();
        for (index, block) in self.blocks.iter().enumerate() {
            names.extend(block.names(&format!("blocks.{index}"), &format!("features.{}", index + 1)));
        }
        names.push(("classifier".into(), "classifier.1".into()));
        names
    }
}
