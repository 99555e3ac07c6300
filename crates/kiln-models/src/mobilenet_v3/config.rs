//! Width and sizes of a MobileNetV3-Large.

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::defaults::{one, three, yes};
use crate::resnet::Stem;
use crate::sizes::{addressable, divisible, multiplier, positive, some_pixels};

/// An inverted residual (Howard et al. 2019, table 1), with numbers of channels at width 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) kernel: usize,
    /// Channels inside of the block.
    pub(super) inner: usize,
    /// Channels of the output.
    pub(super) channels: usize,
    /// Whether the block has squeeze-and-excitation.
    pub(super) excited: bool,
    /// Hard-swish if true, ReLU if false.
    pub(super) hard_swish: bool,
    pub(super) stride: usize,
}

const fn row(kernel: usize, [inner, channels]: [usize; 2], [excited, hard_swish]: [bool; 2], stride: usize) -> Row {
    Row { kernel, inner, channels, excited, hard_swish, stride }
}

pub(super) const ROWS: [Row; 15] = [
    row(3, [16, 16], [false, false], 1),
    row(3, [64, 24], [false, false], 2),
    row(3, [72, 24], [false, false], 1),
    row(5, [72, 40], [true, false], 2),
    row(5, [120, 40], [true, false], 1),
    row(5, [120, 40], [true, false], 1),
    row(3, [240, 80], [false, true], 2),
    row(3, [200, 80], [false, true], 1),
    row(3, [184, 80], [false, true], 1),
    row(3, [184, 80], [false, true], 1),
    row(3, [480, 112], [true, true], 1),
    row(3, [672, 112], [true, true], 1),
    row(5, [672, 160], [true, true], 2),
    row(5, [960, 160], [true, true], 1),
    row(5, [960, 160], [true, true], 1),
];

/// The configuration of a [`MobileNetV3`](crate::MobileNetV3).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MobileNetV3Config {
    /// Number of classes, at least 1.
    pub classes: usize,
    /// Channels of the input images; 3 by default.
    #[serde(default = "three")]
    pub channels: usize,
    /// Factor of the paper's numbers of channels, which are then rounded to multiples of 8; 1 by default.
    #[serde(default = "one")]
    pub width: f64,
    /// The layers before the first block. The first convolution has a stride of 2 for [`Stem::ImageNet`], which is the default. For
    /// [`Stem::Cifar`] it has a stride of 1, and so has the first block that would have a larger stride.
    #[serde(default)]
    pub stem: Stem,
    /// Whether the blocks are made of kiln-layers' operations, which keep less for the backward pass; of burn's own otherwise. True by
    /// default.
    #[serde(default = "yes")]
    pub lean: bool,
}

impl MobileNetV3Config {
    /// MobileNetV3-Large of width 1: 5.5 million parameters at 1000 classes.
    pub fn large(classes: usize) -> Self {
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
    pub(super) fn scaled(&self, channels: usize) -> usize {
        divisible(channels as f64 * self.width)
    }

    /// Channels between the two layers of the classifier.
    pub(super) fn hidden(&self) -> usize {
        self.scaled(1280)
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let Self { classes, channels, width, .. } = *self;
        positive([("classes", classes), ("channels", channels)])?;
        multiplier("width", width)?;
        addressable("channels", channels, &[3, 3, channels, self.scaled(16)])?;
        addressable("classes", classes, &[self.hidden(), classes])
    }
}
