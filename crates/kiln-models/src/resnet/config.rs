//! Depth and sizes of a residual network.

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::defaults::{three, yes};
use crate::sizes::{addressable, positive, some_pixels};

/// The layers between the image and the first residual block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stem {
    /// 7x7 convolution of stride 2 and a max-pool: for images of about 224 pixels.
    #[default]
    ImageNet,
    /// 3x3 convolution of stride 1: for images of about 32 pixels.
    Cifar,
}

/// Blocks per stage and the kind of block: the four depths of He et al. 2015, table 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Depth {
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
    pub(super) fn stages(self) -> [usize; 4] {
        match self {
            Depth::D18 => [2, 2, 2, 2],
            Depth::D34 | Depth::D50 => [3, 4, 6, 3],
            Depth::D101 => [3, 4, 23, 3],
        }
    }

    /// Output channels of a block over its inner width: 4 for bottlenecks, 1 for basic blocks.
    pub(super) fn expansion(self) -> usize {
        match self {
            Depth::D18 | Depth::D34 => 1,
            Depth::D50 | Depth::D101 => 4,
        }
    }
}

/// The configuration of a [`ResNet`](crate::ResNet).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResNetConfig {
    #[serde(rename = "name")]
    pub(super) depth: Depth,
    /// Number of classes, at least 1.
    pub classes: usize,
    /// Channels of the input images; 3 by default.
    #[serde(default = "three")]
    pub channels: usize,
    /// Channels of the first stage; 64 in the paper and by default.
    #[serde(default = "sixty_four")]
    pub width: usize,
    /// The layers before the first block.
    #[serde(default)]
    pub stem: Stem,
    /// Whether the last batch-norm scale of every block starts at zero, so that each block begins as the identity (Goyal et al.
    /// 2017, section 5.1); true by default.
    #[serde(default = "yes")]
    pub zero_init: bool,
    /// Whether the blocks are made of kiln-layers' operations, which keep less for the backward pass; of burn's own otherwise. True by
    /// default.
    #[serde(default = "yes")]
    pub lean: bool,
}

fn sixty_four() -> usize {
    64
}

impl ResNetConfig {
    /// The names that [`named`](Self::named) accepts.
    pub const NAMES: &'static str = "resnet18, resnet34, resnet50, resnet101";

    fn new(depth: Depth, classes: usize) -> Self {
        Self {
            depth,
            classes,
            channels: three(),
            width: sixty_four(),
            stem: Stem::ImageNet,
            zero_init: yes(),
            lean: yes(),
        }
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

    /// The name of this depth, one of [`NAMES`](Self::NAMES).
    pub fn name(&self) -> &'static str {
        match self.depth {
            Depth::D18 => "resnet18",
            Depth::D34 => "resnet34",
            Depth::D50 => "resnet50",
            Depth::D101 => "resnet101",
        }
    }

    /// Sets the layers before the first block.
    pub fn with_stem(mut self, stem: Stem) -> Self {
        self.stem = stem;
        self
    }

    /// Sets the number of channels of the first stage.
    pub fn with_width(mut self, width: usize) -> Self {
        self.width = width;
        self
    }

    /// Sets the number of channels of the input images.
    pub fn with_channels(mut self, channels: usize) -> Self {
        self.channels = channels;
        self
    }

    /// Sets whether the last batch-norm scale of every block starts at zero, so that each block begins as the identity.
    pub fn with_zero_init(mut self, zero_init: bool) -> Self {
        self.zero_init = zero_init;
        self
    }

    /// Sets whether the blocks use kiln-layers' operations (true) or burn's own (false).
    pub fn with_lean(mut self, lean: bool) -> Self {
        self.lean = lean;
        self
    }

    /// Checks that images of `[height, width]` pixels can be read. Every convolution and pool is padded and rounds sizes up, so
    /// that a single pixel is enough.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] for a height or width of 0.
    pub fn check_input(&self, size: [usize; 2]) -> Result<(), Error> {
        some_pixels(size)
    }

    /// Blocks of each stage.
    pub(crate) fn stages(&self) -> [usize; 4] {
        self.depth.stages()
    }

    /// Channels of the output of stage `number`, counted from zero.
    pub(crate) fn stage(&self, number: usize) -> usize {
        (self.width << number) * self.depth.expansion()
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let Self { classes, channels, width, .. } = *self;
        positive([("classes", classes), ("channels", channels), ("width", width)])?;
        // The last stage has 8 times the width, and up to 4 times that at its end.
        addressable("width", width, &[3, 3, 8, 8, width, width])?;
        addressable("channels", channels, &[7, 7, channels, width])?;
        addressable("classes", classes, &[8, 4, width, classes])
    }
}
