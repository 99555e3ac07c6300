//! The network: stem, inverted residuals and classifier.

use burn::module::Module;
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::activation::hard_swish;
use burn::tensor::{Device, Tensor};

use super::block::{ConvHardSwish, InvertedResidualV3, MobileNetV3Block, conv_norm};
use super::config::{MobileNetV3Config, ROWS, Row};
use crate::Error;
use crate::conv_norm::{ConvNorm, ConvShape};
use crate::layer;
use crate::resnet::Stem;

/// MobileNetV3-Large for image classification. Build one with [`MobileNetV3Config`].
///
/// torchvision's dropout in the classifier is left out.
#[derive(Module, Debug)]
pub struct MobileNetV3 {
    stem: ConvNorm,
    blocks: Vec<InvertedResidualV3>,
    last: ConvNorm,
    hidden: Linear,
    classifier: Linear,
    lean: bool,
}

impl MobileNetV3Config {
    /// Builds the model on `device` with torchvision's initialisation: He-normal by fan-out for convolutions, ones and zeros for batch
    /// norm, N(0, 0.01) for the classifier, zeros for biases.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for `classes` or `channels` of 0 or too large to be addressed, and a width out of range.
    pub fn init(&self, device: &Device) -> Result<MobileNetV3, Error> {
        self.check()?;
        let (mut channels, mut small) = (self.scaled(16), self.stem == Stem::Cifar);
        let stem = ConvShape::new([self.channels, channels], 3, if small { 1 } else { 2 });
        let mut blocks = vec![];
        for row in ROWS {
            // Images of about 32 pixels are halved three times, not five.
            let stride = if row.stride == 2 && std::mem::take(&mut small) { 1 } else { row.stride };
            let row = Row { inner: self.scaled(row.inner), channels: self.scaled(row.channels), stride, ..row };
            blocks.push(InvertedResidualV3::new(channels, row, self.lean, device));
            channels = row.channels;
        }
        let linear = |from, to| {
            let normal = Initializer::Normal { mean: 0.0, std: 0.01 };
            let mut layer = LinearConfig::new(from, to).with_initializer(normal).init(device);
            layer.bias = Some(Initializer::Zeros.init([to], device));
            layer
        };
        let features = 6 * channels;
        Ok(MobileNetV3 {
            stem: conv_norm(stem, device),
            blocks,
            last: conv_norm(ConvShape::pointwise(channels, features), device),
            hidden: linear(features, self.hidden()),
            classifier: linear(self.hidden(), self.classes),
            lean: self.lean,
        })
    }
}

impl MobileNetV3 {
    /// The stem, the inverted residuals and the last convolution. They turn images `[B, C, H, W]` (normalised floats) into the features
    /// that [`head`](Self::head) reads. They are handles to this network's parameters and running statistics, not copies.
    pub fn blocks(&self) -> Vec<MobileNetV3Block> {
        let conv =
            |layers: &ConvNorm| MobileNetV3Block::Conv(ConvHardSwish { layers: layers.clone(), lean: self.lean });
        let inverted = self.blocks.iter().cloned().map(MobileNetV3Block::Inverted);
        std::iter::once(conv(&self.stem)).chain(inverted).chain([conv(&self.last)]).collect()
    }

    /// Turns the features of the last block into logits `[B, classes]`.
    pub fn head(&self, x: Tensor<4>) -> Tensor<2> {
        let x = layer::linear(&self.hidden, x.mean_dims(&[2, 3]).flatten(1, 3));
        layer::linear(&self.classifier, hard_swish(x))
    }

    /// Turns images `[B, C, H, W]` (normalised floats) into logits `[B, classes]`.
    pub fn forward(&self, images_bchw: Tensor<4>) -> Tensor<2> {
        self.head(self.blocks().iter().fold(images_bchw, |x, block| block.forward(x)))
    }

    /// The paths of layers in this crate and in torchvision's files.
    pub(crate) fn names(&self) -> Vec<(String, String)> {
        let pair = |ours: &str, theirs: &str| {
            [(".conv", ".0"), (".norm", ".1")].map(|(a, b)| (format!("{ours}{a}"), format!("{theirs}{b}")))
        };
        let last = self.blocks.len() + 1;
        let mut names = [pair("stem", "features.0"), pair("last", &format!("features.{last}"))].concat();
        for (index, block) in self.blocks.iter().enumerate() {
            let (ours, theirs) = (format!("blocks.{index}"), format!("features.{}.block", index + 1));
            let depthwise = usize::from(block.expand.is_some());
            let project = depthwise + 1 + usize::from(block.excitation.is_some());
            if block.expand.is_some() {
                names.extend(pair(&format!("{ours}.expand"), &format!("{theirs}.0")));
            }
            names.extend(pair(&format!("{ours}.depthwise"), &format!("{theirs}.{depthwise}")));
            if block.excitation.is_some() {
                names.push((format!("{ours}.excitation"), format!("{theirs}.{}", depthwise + 1)));
            }
            names.extend(pair(&format!("{ours}.project"), &format!("{theirs}.{project}")));
        }
        names.push(("classifier".into(), "classifier.3".into()));
        names.push(("hidden".into(), "classifier.0".into()));
        names
    }
}
