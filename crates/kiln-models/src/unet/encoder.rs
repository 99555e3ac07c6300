//! The encoder: the blocks of a classifier, which halve the image five times.

use burn::module::Module;
use burn::nn::pool::MaxPool2d;
use burn::tensor::{Device, Tensor};

use super::config::{LEVELS, UnetConfig, UnetEncoder};
use crate::Error;
use crate::config::{invalid, multiplier};
use crate::layers::{max_pool2d, usable};
use crate::mobilenet::{MobileNetBlock, MobileNetV2Config};
use crate::resnet::{ResNetBlock, ResNetConfig};

/// One block of the encoder.
#[derive(Module, Debug)]
pub struct EncoderBlock {
    pool: Option<MaxPool2d>,
    pub(super) layers: EncoderLayers,
    /// Whether the decoder reads the input of this block as well.
    pub(super) keeps_input: bool,
    lean: bool,
}

/// A block of the classifier that the encoder is taken from.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant, reason = "a chain has few blocks, and burn has no modules in boxes")]
#[allow(missing_docs, reason = "named after the networks")]
pub(super) enum EncoderLayers {
    ResNet(ResNetBlock),
    MobileNetV2(MobileNetBlock),
}

impl EncoderBlock {
    /// `[B, C, H, W]` to `[B, C', H', W']`.
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let x = match &self.pool {
            Some(pool) => max_pool2d(pool, usable(self.lean, &x), x),
            None => x,
        };
        match &self.layers {
            EncoderLayers::ResNet(block) => block.forward(x),
            EncoderLayers::MobileNetV2(block) => block.forward(x),
        }
    }
}

/// The blocks of an encoder, and the channels of the features that the decoder reads, from the largest image to the smallest.
pub(super) struct Encoder {
    pub(super) blocks: Vec<EncoderBlock>,
    pub(super) channels: [usize; LEVELS],
}

impl UnetConfig {
    /// Builds the encoder on `device`.
    pub(super) fn init_encoder(&self, device: &Device) -> Result<Encoder, Error> {
        multiplier("width", self.width)?;
        if self.encoder == UnetEncoder::MobileNetV2 {
            let config = MobileNetV2Config::new(1).with_width(self.width);
            return mobilenet_v2(&config.with_channels(self.channels).with_lean(self.lean), device);
        }
        let config = ResNetConfig::named(self.encoder.name(), 1)?;
        let width = (config.width as f64 * self.width).round();
        if width < 1.0 {
            return Err(invalid("width", self.width, "at least 1/64, one channel in the first stage"));
        }
        resnet(&config.with_width(width as usize).with_channels(self.channels).with_lean(self.lean), device)
    }
}

fn resnet(config: &ResNetConfig, device: &Device) -> Result<Encoder, Error> {
    let [first, second, third, _] = config.stages();
    // The first block of each stage and the decoder read the output of the stage before it.
    let firsts = [1, 1 + first, 1 + first + second, 1 + first + second + third];
    let mut pool = None;
    let block = |(index, layers)| EncoderBlock {
        pool: pool.take(),
        layers: EncoderLayers::ResNet(match layers {
            // The decoder reads the input of the pool, so the pool is part of the next block.
            ResNetBlock::Stem(stem) => {
                let (stem, next) = stem.into_parts();
                pool = next;
                ResNetBlock::Stem(stem)
            }
            residual @ ResNetBlock::Residual(_) => residual,
        }),
        keeps_input: firsts.contains(&index),
        lean: config.lean,
    };
    Ok(Encoder {
        blocks: config.init(device)?.blocks().into_iter().enumerate().map(block).collect(),
        channels: [config.width, config.stage(0), config.stage(1), config.stage(2), config.stage(3)],
    })
}

fn mobilenet_v2(config: &MobileNetV2Config, device: &Device) -> Result<Encoder, Error> {
    /// After the stem: the first blocks that halve the image, and the channels that they read at width 1.
    const FIRSTS: [(usize, usize); 4] = [(2, 16), (4, 24), (7, 32), (14, 96)];
    let block = |(index, layers)| EncoderBlock {
        pool: None,
        layers: EncoderLayers::MobileNetV2(layers),
        keeps_input: FIRSTS.iter().any(|(first, _)| *first == index),
        lean: config.lean,
    };
    let [first, second, third, fourth] = FIRSTS.map(|(_, channels)| config.scaled(channels));
    Ok(Encoder {
        blocks: config.init(device)?.blocks().into_iter().enumerate().map(block).collect(),
        channels: [first, second, third, fourth, config.features()],
    })
}

/// The paths of the layers of `blocks` in this crate and in the files of segmentation_models_pytorch, without the prefix.
pub(super) fn names(blocks: &[EncoderBlock]) -> Vec<(String, String)> {
    let mut names = vec![];
    let (mut stage, mut in_stage) = (0, 0);
    for (index, block) in blocks.iter().enumerate() {
        if block.keeps_input {
            (stage, in_stage) = (stage + 1, 0);
        }
        let ours = format!("{index}.layers");
        match &block.layers {
            EncoderLayers::ResNet(ResNetBlock::Stem(_)) => {
                let layer = |layer: &str| (format!("{ours}.ResNet.Stem.{layer}"), layer.to_owned());
                names.extend(["conv1", "bn1"].map(layer));
            }
            EncoderLayers::ResNet(ResNetBlock::Residual(_)) => {
                let (ours, theirs) = (format!("{ours}.ResNet.Residual"), format!("layer{stage}.{in_stage}"));
                let layer = |(a, b): (&str, &str)| (format!("{ours}{a}"), format!("{theirs}{b}"));
                // Longer paths come first: a path is renamed once.
                names.extend(
                    [(".downsample.conv", ".downsample.0"), (".downsample.norm", ".downsample.1"), ("", "")].map(layer),
                );
            }
            EncoderLayers::MobileNetV2(layers) => {
                names.extend(layers.names(&format!("{ours}.MobileNetV2"), &format!("features.{index}")));
            }
        }
        in_stage += 1;
    }
    names
}
