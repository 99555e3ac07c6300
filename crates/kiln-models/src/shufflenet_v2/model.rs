//! The network: stem, three stages and classifier.

use burn::module::Module;
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::{Device, Tensor};

use super::block::{ConvRelu, ShuffleBlock, ShuffleNetV2Block};
use super::config::ShuffleNetV2Config;
use crate::Error;
use crate::conv_norm::{ConvNorm, ConvShape, torch_uniform};
use crate::layer;
use crate::resnet::Stem;

/// Number of blocks of each stage.
const BLOCKS: [usize; 3] = [4, 8, 4];
/// Channels of the first convolution.
const FIRST: usize = 24;

/// ShuffleNetV2 for image classification. Build one with [`ShuffleNetV2Config`].
#[derive(Module, Debug)]
pub struct ShuffleNetV2 {
    conv1: ConvNorm,
    maxpool: Option<MaxPool2d>,
    stage2: Vec<ShuffleBlock>,
    stage3: Vec<ShuffleBlock>,
    stage4: Vec<ShuffleBlock>,
    conv5: ConvNorm,
    fc: Linear,
    lean: bool,
}

impl ShuffleNetV2Config {
    /// Builds the model on `device` with torchvision's initialisation, which is torch's default for each layer.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for sizes of 0, odd, or too large to be addressed.
    pub fn init(&self, device: &Device) -> Result<ShuffleNetV2, Error> {
        self.check()?;
        let layers = |shape| ConvNorm::new(shape, &torch_uniform(), device);
        let [second, third, fourth, last] = self.widths;
        let mut channels = FIRST;
        let mut stage = |number: usize, to: usize| {
            let block = |index| {
                let (from, stride) = if index == 0 { (channels, 2) } else { (to, 1) };
                ShuffleBlock::new([from, to], stride, self.lean, device)
            };
            let blocks = (0..BLOCKS[number]).map(block).collect();
            channels = to;
            blocks
        };
        let small = self.stem == Stem::Cifar;
        Ok(ShuffleNetV2 {
            conv1: layers(ConvShape::new([self.channels, FIRST], 3, if small { 1 } else { 2 })),
            maxpool: (!small).then(|| {
                let config = MaxPool2dConfig::new([3, 3]).with_strides([2, 2]);
                config.with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1)).init()
            }),
            stage2: stage(0, second),
            stage3: stage(1, third),
            stage4: stage(2, fourth),
            conv5: layers(ConvShape::pointwise(fourth, last)),
            fc: LinearConfig::new(last, self.classes).init(device),
            lean: self.lean,
        })
    }
}

impl ShuffleNetV2 {
    fn stages(&self) -> [(&'static str, &Vec<ShuffleBlock>); 3] {
        [("stage2", &self.stage2), ("stage3", &self.stage3), ("stage4", &self.stage4)]
    }

    /// The stem, the blocks of the stages and the last convolution. They turn images `[B, C, H, W]` (normalised floats) into the features
    /// that [`head`](Self::head) reads. They are handles to this network's parameters and running statistics, not copies.
    pub fn blocks(&self) -> Vec<ShuffleNetV2Block> {
        let conv = |layers: &ConvNorm, maxpool: &Option<MaxPool2d>| {
            ShuffleNetV2Block::Conv(ConvRelu { layers: layers.clone(), maxpool: maxpool.clone(), lean: self.lean })
        };
        let stages = self.stages().into_iter().flat_map(|(_, blocks)| blocks.clone());
        let shuffled = stages.map(ShuffleNetV2Block::Shuffle);
        std::iter::once(conv(&self.conv1, &self.maxpool)).chain(shuffled).chain([conv(&self.conv5, &None)]).collect()
    }

    /// Turns the features of the last block into logits `[B, classes]`.
    pub fn head(&self, x: Tensor<4>) -> Tensor<2> {
        layer::linear(&self.fc, x.mean_dims(&[2, 3]).flatten(1, 3))
    }

    /// Turns images `[B, C, H, W]` (normalised floats) into logits `[B, classes]`.
    pub fn forward(&self, images_bchw: Tensor<4>) -> Tensor<2> {
        self.head(self.blocks().iter().fold(images_bchw, |x, block| block.forward(x)))
    }

    /// The paths of layers in this crate and in torchvision's files.
    pub(crate) fn names(&self) -> Vec<(String, String)> {
        let pair = |ours: String, theirs: String, first: usize| {
            let path = |number: usize| format!("{theirs}.{number}");
            [(format!("{ours}.conv"), path(first)), (format!("{ours}.norm"), path(first + 1))]
        };
        let mut names = [pair("conv1".into(), "conv1".into(), 0), pair("conv5".into(), "conv5".into(), 0)].concat();
        for (stage, blocks) in self.stages() {
            for (index, block) in blocks.iter().enumerate() {
                let path = format!("{stage}.{index}");
                let layers =
                    |ours: &str, theirs: &str, first| pair(format!("{path}.{ours}"), format!("{path}.{theirs}"), first);
                if block.short.is_some() {
                    names.extend(layers("short.depthwise", "branch1", 0));
                    names.extend(layers("short.pointwise", "branch1", 2));
                }
                names.extend(layers("long.first", "branch2", 0));
                names.extend(layers("long.depthwise", "branch2", 3));
                names.extend(layers("long.last", "branch2", 5));
            }
        }
        names
    }
}
