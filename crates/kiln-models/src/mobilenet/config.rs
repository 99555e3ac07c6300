//! Width and sizes of a MobileNetV2 and of a MobileNetV3-Large.

use kiln_layers::NormActivation::{HardSwish, Relu};
use serde::{Deserialize, Serialize};

use super::block::Row;
use crate::Error;
use crate::config::{addressable, divisible, multiplier, one, positive, reads_images, setters, three, yes};
use crate::resnet::Stem;

/// A group of inverted residuals of a MobileNetV2 (Sandler et al. 2018, table 2).
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    /// Channels inside of a block over those that it reads.
    pub(super) expansion: usize,
    /// Output channels at width 1.
    pub(super) channels: usize,
    pub(super) blocks: usize,
    /// Stride of the first block; the others have a stride of 1.
    pub(super) stride: usize,
}

pub(super) const V2: [Group; 7] = [
    Group { expansion: 1, channels: 16, blocks: 1, stride: 1 },
    Group { expansion: 6, channels: 24, blocks: 2, stride: 2 },
    Group { expansion: 6, channels: 32, blocks: 3, stride: 2 },
    Group { expansion: 6, channels: 64, blocks: 4, stride: 2 },
    Group { expansion: 6, channels: 96, blocks: 3, stride: 1 },
    Group { expansion: 6, channels: 160, blocks: 3, stride: 2 },
    Group { expansion: 6, channels: 320, blocks: 1, stride: 1 },
];

const fn row(kernel: usize, [inner, channels]: [usize; 2], [excited, swish]: [bool; 2], stride: usize) -> Row {
    Row { kernel, inner, channels, excited, activation: if swish { HardSwish } else { Relu }, stride }
}

/// The inverted residuals of a MobileNetV3-Large, with numbers of channels at width 1 (Howard et al. 2019, table 1).
pub(super) const V3: [Row; 15] = [
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

/// Writes the configuration of a MobileNet.
macro_rules! config {
    ($(#[$doc:meta])+ $name:ident, $(#[$new_doc:meta])+ $new:ident) => {
        $(#[$doc])+
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            /// Number of classes, at least 1.
            pub classes: usize,
            /// Channels of the input images; 3 by default.
            #[serde(default = "three")]
            pub channels: usize,
            /// Factor of the paper's numbers of channels, which are then rounded to multiples of 8; 1 by default.
            #[serde(default = "one")]
            pub width: f64,
            /// The layers before the first block. The first convolution has a stride of 2 for [`Stem::ImageNet`], which is the default. For
            /// [`Stem::Cifar`] it has a stride of 1, and so have the first blocks that would halve the image.
            #[serde(default)]
            pub stem: Stem,
            /// Whether the blocks are made of kiln-layers' operations, which keep less for the backward pass; of burn's own otherwise. True
            /// by default.
            #[serde(default = "yes")]
            pub lean: bool,
        }

        impl $name {
            $(#[$new_doc])+
            pub fn $new(classes: usize) -> Self {
                Self { classes, channels: three(), width: one(), stem: Stem::ImageNet, lean: yes() }
            }

            /// The number of channels at this width, from `channels` at width 1.
            pub(crate) fn scaled(&self, channels: usize) -> usize {
                divisible(channels as f64 * self.width)
            }

            /// Checks the sizes of a network whose stem makes `first` channels at width 1, and whose last layer reads `last` numbers.
            fn check_sizes(&self, first: usize, last: impl Fn() -> usize) -> Result<(), Error> {
                let Self { classes, channels, width, .. } = *self;
                positive([("classes", classes), ("channels", channels)])?;
                multiplier("width", width)?;
                addressable("channels", channels, &[3, 3, channels, self.scaled(first)])?;
                addressable("classes", classes, &[last(), classes])
            }
        }

        reads_images!($name);
        setters! { $name:
            /// Sets the factor of the numbers of channels, which are then rounded to multiples of 8.
            with_width(width: f64);
        }
    };
}

config! {
    /// The configuration of a MobileNetV2.
    MobileNetV2Config,
    /// MobileNetV2 of width 1: 3.5 million parameters at 1000 classes.
    new
}

config! {
    /// The configuration of a MobileNetV3-Large.
    MobileNetV3Config,
    /// MobileNetV3-Large of width 1: 5.5 million parameters at 1000 classes.
    large
}

impl MobileNetV2Config {
    /// Channels that the classifier reads. A width below 1 does not reduce them.
    pub(crate) fn features(&self) -> usize {
        divisible(1280.0 * self.width.max(1.0))
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        self.check_sizes(32, || self.features())
    }
}

impl MobileNetV3Config {
    /// Channels between the two layers of the classifier.
    pub(super) fn hidden(&self) -> usize {
        self.scaled(1280)
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        self.check_sizes(16, || self.hidden())
    }
}
