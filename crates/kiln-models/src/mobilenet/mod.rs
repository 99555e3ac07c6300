//! MobileNetV2 (Sandler et al. 2018) and MobileNetV3-Large (Howard et al. 2019), as torchvision builds them.

mod block;
mod config;

use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::activation::hard_swish;
use burn::tensor::{Device, Tensor};
use kiln_layers::NormActivation::{self, HardSwish, Relu6};

use crate::Error;
use crate::layers::{self, ConvNorm, ConvNormActivation, ConvShape, conv_norm_names, normal_linear};
use crate::resnet::Stem;

use block::{InvertedResidual, Row, v2_layers, v3_layers};
use config::{V2, V3};

pub use block::MobileNetBlock;
pub use config::{MobileNetV2Config, MobileNetV3Config};

/// The deviation of the classifier's first weights.
const STD: f64 = 0.01;

/// A MobileNet for image classification. Build one with [`MobileNetV2Config`] or [`MobileNetV3Config`].
///
/// torchvision's dropout in the classifier is left out.
#[derive(Module, Debug)]
pub struct MobileNet {
    stem: ConvNorm,
    blocks: Vec<InvertedResidual>,
    last: ConvNorm,
    /// The first of the two layers of MobileNetV3's classifier.
    hidden: Option<Linear>,
    classifier: Linear,
    /// The activation of the stem and of the last convolution.
    #[module(skip)]
    activation: NormActivation,
    lean: bool,
}

/// The strides of the stem and of blocks that have `strides` at full size. Images of about 32 pixels are halved three times, not five.
fn strides(stem: Stem, strides: impl Iterator<Item = usize>) -> (usize, impl Iterator<Item = usize>) {
    let mut small = stem == Stem::Cifar;
    (
        if small { 1 } else { 2 },
        strides.map(move |stride| if stride == 2 && std::mem::take(&mut small) { 1 } else { stride }),
    )
}

impl MobileNetV2Config {
    /// Builds the model on `device` with torchvision's initialisation: He-normal by fan-out for convolutions, ones and zeros for batch
    /// norm, N(0, 0.01) for the classifier.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for `classes` or `channels` of 0 or too large to be addressed, and a width out of range.
    pub fn init(&self, device: &Device) -> Result<MobileNet, Error> {
        self.check()?;
        let mut channels = self.scaled(32);
        let (first, strides) = strides(self.stem, V2.into_iter().map(|group| group.stride));
        let stem = v2_layers(ConvShape::new([self.channels, channels], 3, first), device);
        let mut blocks = vec![];
        for (group, stride) in V2.into_iter().zip(strides) {
            let to = self.scaled(group.channels);
            for index in 0..group.blocks {
                let (inner, stride) = (channels * group.expansion, if index == 0 { stride } else { 1 });
                let row = Row { kernel: 3, inner, channels: to, excited: false, activation: Relu6, stride };
                blocks.push(InvertedResidual::new(channels, row, self.lean, v2_layers, device));
                channels = to;
            }
        }
        let classifier = normal_linear(self.features(), self.classes, STD, device);
        let last = v2_layers(ConvShape::pointwise(channels, self.features()), device);
        Ok(MobileNet { stem, blocks, last, hidden: None, classifier, activation: Relu6, lean: self.lean })
    }
}

impl MobileNetV3Config {
    /// Builds the model on `device` with torchvision's initialisation: He-normal by fan-out for convolutions, ones and zeros for batch
    /// norm, N(0, 0.01) for the classifier, zeros for biases.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for `classes` or `channels` of 0 or too large to be addressed, and a width out of range.
    pub fn init(&self, device: &Device) -> Result<MobileNet, Error> {
        self.check()?;
        let mut channels = self.scaled(16);
        let (first, strides) = strides(self.stem, V3.into_iter().map(|row| row.stride));
        let stem = ConvShape::new([self.channels, channels], 3, first);
        let mut blocks = vec![];
        for (row, stride) in V3.into_iter().zip(strides) {
            let row = Row { inner: self.scaled(row.inner), channels: self.scaled(row.channels), stride, ..row };
            blocks.push(InvertedResidual::new(channels, row, self.lean, v3_layers, device));
            channels = row.channels;
        }
        let features = 6 * channels;
        Ok(MobileNet {
            stem: v3_layers(stem, device),
            blocks,
            last: v3_layers(ConvShape::pointwise(channels, features), device),
            hidden: Some(normal_linear(features, self.hidden(), STD, device)),
            classifier: normal_linear(self.hidden(), self.classes, STD, device),
            activation: HardSwish,
            lean: self.lean,
        })
    }
}

impl MobileNet {
    /// The stem, the inverted residuals and the last convolution. They turn images `[B, C, H, W]` (normalised floats) into the features
    /// that [`head`](Self::head) reads. They are handles to this network's parameters and running statistics, not copies.
    pub fn blocks(&self) -> Vec<MobileNetBlock> {
        let conv = |layers| MobileNetBlock::Conv(ConvNormActivation::of(layers, self.activation, None, self.lean));
        let inverted = self.blocks.iter().cloned().map(MobileNetBlock::Inverted);
        std::iter::once(conv(&self.stem)).chain(inverted).chain([conv(&self.last)]).collect()
    }

    /// Turns the features of the last block into logits `[B, classes]`.
    pub fn head(&self, x: Tensor<4>) -> Tensor<2> {
        let x = x.mean_dims(&[2, 3]).flatten(1, 3);
        let x = match &self.hidden {
            Some(hidden) => hard_swish(layers::linear(hidden, x)),
            None => x,
        };
        layers::linear(&self.classifier, x)
    }

    /// Turns images `[B, C, H, W]` (normalised floats) into logits `[B, classes]`.
    pub fn forward(&self, images_bchw: Tensor<4>) -> Tensor<2> {
        self.head(self.blocks().iter().fold(images_bchw, |x, block| block.forward(x)))
    }

    /// The paths of layers in this crate and in torchvision's files.
    pub(crate) fn names(&self) -> Vec<(String, String)> {
        let last = format!("features.{}", self.blocks.len() + 1);
        let mut names = [conv_norm_names("stem", "features.0", 0), conv_norm_names("last", &last, 0)].concat();
        let is_v3 = self.hidden.is_some();
        for (index, block) in self.blocks.iter().enumerate() {
            let theirs = format!("features.{}.{}", index + 1, if is_v3 { "block" } else { "conv" });
            names.extend(block.names(&format!("blocks.{index}"), &theirs, !is_v3));
        }
        let classifier: &[(&str, &str)] = match is_v3 {
            true => &[("classifier", "classifier.3"), ("hidden", "classifier.0")],
            false => &[("classifier", "classifier.1")],
        };
        names.extend(classifier.iter().map(|(ours, theirs)| ((*ours).to_owned(), (*theirs).to_owned())));
        names
    }
}
