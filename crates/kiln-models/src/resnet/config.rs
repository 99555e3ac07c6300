use burn::nn::pool::{AdaptiveAvgPool2dConfig, MaxPool2dConfig};
use burn::nn::{BatchNormConfig, LinearConfig, PaddingConfig2d};
use burn::tensor::Device;
use serde::{Deserialize, Serialize};

use super::block::{ResidualBlock, conv};
use super::{ResNet, Stem};
use crate::Error;

/// Blocks per stage and the kind of block: the four depths of He et al. 2015, table 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Depth {
    #[serde(rename = "resnet18")]
    D18,
    #[serde(rename = "resnet34")]
    D34,
    #[serde(rename = "resnet50")]
    D50,
    #[serde(rename = "resnet101")]
    D101,
}

impl Depth {
    fn stages(self) -> [usize; 4] {
        match self {
            Depth::D18 => [2, 2, 2, 2],
            Depth::D34 | Depth::D50 => [3, 4, 6, 3],
            Depth::D101 => [3, 4, 23, 3],
        }
    }

    /// Output channels of a block over its inner width: 4 for bottlenecks, 1 for basic blocks.
    fn expansion(self) -> usize {
        match self {
            Depth::D18 | Depth::D34 => 1,
            Depth::D50 | Depth::D101 => 4,
        }
    }
}

/// What a [`ResNet`] is built from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResNetConfig {
    #[serde(rename = "name")]
    depth: Depth,
    /// Number of classes, at least 1.
    pub classes: usize,
    /// Channels of the input images; 3 unless told.
    #[serde(default = "three")]
    pub channels: usize,
    /// Channels of the first stage; 64 in the paper, smaller makes a narrow network.
    #[serde(default = "sixty_four")]
    pub width: usize,
    /// The layers before the first block.
    #[serde(default)]
    pub stem: Stem,
    /// Start the last batch-norm scale of every block at zero, so that each block begins as the
    /// identity (Goyal et al. 2017, section 5.1). On unless told.
    #[serde(default = "yes")]
    pub zero_init: bool,
}

fn three() -> usize {
    3
}
fn sixty_four() -> usize {
    64
}
fn yes() -> bool {
    true
}

impl ResNetConfig {
    /// The names that [`named`](Self::named) accepts.
    pub const NAMES: &'static str = "resnet18, resnet34, resnet50, resnet101";

    fn new(depth: Depth, classes: usize) -> Self {
        Self { depth, classes, channels: three(), width: sixty_four(), stem: Stem::ImageNet, zero_init: yes() }
    }

    /// ResNet-18: basic blocks, 11.7 million parameters at 1000 classes.
    pub fn resnet18(classes: usize) -> Self {
        Self::new(Depth::D18, classes)
    }

    /// ResNet-34: basic blocks, 21.8 million parameters at 1000 classes.
    pub fn resnet34(classes: usize) -> Self {
        Self::new(Depth::D34, classes)
    }

    /// ResNet-50: bottlenecks, 25.6 million parameters at 1000 classes.
    pub fn resnet50(classes: usize) -> Self {
        Self::new(Depth::D50, classes)
    }

    /// ResNet-101: bottlenecks, 44.5 million parameters at 1000 classes.
    pub fn resnet101(classes: usize) -> Self {
        Self::new(Depth::D101, classes)
    }

    /// The configuration called `name`, one of [`NAMES`](Self::NAMES).
    ///
    /// # Errors
    /// [`Error::UnknownModel`].
    pub fn named(name: &str, classes: usize) -> Result<Self, Error> {
        match name {
            "resnet18" => Ok(Self::resnet18(classes)),
            "resnet34" => Ok(Self::resnet34(classes)),
            "resnet50" => Ok(Self::resnet50(classes)),
            "resnet101" => Ok(Self::resnet101(classes)),
            _ => Err(Error::UnknownModel { name: name.to_owned(), expected: Self::NAMES }),
        }
    }

    /// The same with another [`Stem`].
    pub fn with_stem(mut self, stem: Stem) -> Self {
        self.stem = stem;
        self
    }

    /// The same with `width` channels in the first stage.
    pub fn with_width(mut self, width: usize) -> Self {
        self.width = width;
        self
    }

    /// The same for images of `channels` channels.
    pub fn with_channels(mut self, channels: usize) -> Self {
        self.channels = channels;
        self
    }

    /// The same with zero initialisation of each block's last batch-norm scale on or off.
    pub fn with_zero_init(mut self, zero_init: bool) -> Self {
        self.zero_init = zero_init;
        self
    }

    /// Builds the model on `device` with torchvision's initialisation: He-normal by fan-out for
    /// convolutions (He et al. 2015b), ones and zeros for batch-norm.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] when `classes`, `channels` or `width` is zero.
    pub fn init(&self, device: &Device) -> Result<ResNet, Error> {
        for (field, value) in [("classes", self.classes), ("channels", self.channels), ("width", self.width)] {
            if value == 0 {
                return Err(Error::InvalidConfig { field, value: "0".into(), expected: "at least 1" });
            }
        }
        let (kernel, stride) = match self.stem {
            Stem::ImageNet => (7, 2),
            Stem::Cifar => (3, 1),
        };
        let mut channels = self.width;
        let mut stage = |number: usize| {
            let inner = self.width << number;
            let out = inner * self.depth.expansion();
            (0..self.depth.stages()[number])
                .map(|i| {
                    let stride = if i == 0 && number > 0 { 2 } else { 1 };
                    let block = ResidualBlock::new([channels, inner, out], stride, self.zero_init, device);
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
        })
    }
}
