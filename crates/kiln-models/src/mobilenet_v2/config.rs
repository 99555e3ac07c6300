//! Width and sizes of a MobileNetV2.

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::defaults::{one, three, yes};
use crate::resnet::Stem;
use crate::sizes::{addressable, divisible, multiplier, positive, some_pixels};

/// A group of inverted residuals (Sandler et al. 2018, table 2).
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub(super) expansion: usize,
    /// Output channels at width 1.
    pub(super) channels: usize,
    pub(super) blocks: usize,
    /// Stride of the first block; the others have a stride of 1.
    pub(super) stride: usize,
}

pub(super) const GROUPS: [Group; 7] = [
    Group { expansion: 1, channels: 16, blocks: 1, stride: 1 },
    Group { expansion: 6, channels: 24, blocks: 2, stride: 2 },
    Group { expansion: 6, channels: 32, blocks: 3, stride: 2 },
    Group { expansion: 6, channels: 64, blocks: 4, stride: 2 },
    Group { expansion: 6, channels: 96, blocks: 3, stride: 1 },
    Group { expansion: 6, channels: 160, blocks: 3, stride: 2 },
    Group { expansion: 6, channels: 320, blocks: 1, stride: 1 },
];

/// The configuration of a [`MobileNetV2`](crate::MobileNetV2).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MobileNetV2Config {
    /// Number of classes, at least 1.
    pub classes: usize,
    /// Channels of the input images; 3 by default.
    #[serde(default = "three")]
    pub channels: usize,
    /// Factor of the paper's numbers of channels, which are then rounded to multiples of 8; 1 by default.
    #[serde(default = "one")]
    pub width: f64,
    /// The layers before the first block. The first convolution has a stride of 2 for [`Stem::ImageNet`], which is the default. For
    /// [`Stem::Cifar`] it has a stride of 1, and so has the first group that would have a larger stride.
    #[serde(default)]
    pub stem: Stem,
    /// Whether the blocks are made of kiln-layers' operations, which keep less for the backward pass; of burn's own otherwise. True by
    /// default.
    #[serde(default = "yes")]
    pub lean: bool,
}

impl MobileNetV2Config {
    /// MobileNetV2 of width 1: 3.5 million parameters at 1000 classes.
    pub fn new(classes: usize) -> Self {
        Self { classes, channels: three(), width: one(), stem: Stem::ImageNet, lean: yes() }
    }

    /// Sets the factor of the numbers of channels, which are then rounded to multiples of 8.
    pub fn with_width(mut self, width: f64) -> Self {
        self.width = width;
        self
    }

    /// Sets the stride of the first layers, by the [`Stem`].
    pub fn with_stem(mut self, stem: Stem) -> Self {
        self.stem = stem;
        self
    }

    /// Sets the number of channels of the input images.
    pub fn with_channels(mut self, channels: usize) -> Self {
        self.channels = channels;
        self
    }

    /// Sets whether the blocks use kiln-layers' operations (true) or burn's own (false).
    pub fn with_lean(mut self, lean: bool) -> Self {
        self.lean = lean;
        self
    }

    /// Checks that images of `[height, width]` pixels can be read. A single pixel is enough.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] for a height or width of 0.
    pub fn check_input(&self, size: [usize; 2]) -> Result<(), Error> {
        some_pixels(size)
    }

    /// The number of channels at this width, from `channels` at width 1.
    pub(crate) fn scaled(&self, channels: usize) -> usize {
        divisible(channels as f64 * self.width)
    }

    /// Channels that the classifier reads. A width below 1 does not reduce them.
    pub(crate) fn features(&self) -> usize {
        divisible(1280.0 * self.width.max(1.0))
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let Self { classes, channels, width, .. } = *self;
        positive([("classes", classes), ("channels", channels)])?;
        multiplier("width", width)?;
        addressable("channels", channels, &[3, 3, channels, self.scaled(32)])?;
        addressable("classes", classes, &[self.features(), classes])
    }
}
