//! Width and sizes of a ShuffleNetV2.

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::defaults::{three, yes};
use crate::resnet::Stem;
use crate::sizes::{addressable, positive, some_pixels};

const SIZES: [(&str, [usize; 4]); 4] = [
    ("shufflenet_v2_x0_5", [48, 96, 192, 1024]),
    ("shufflenet_v2_x1_0", [116, 232, 464, 1024]),
    ("shufflenet_v2_x1_5", [176, 352, 704, 1024]),
    ("shufflenet_v2_x2_0", [244, 488, 976, 2048]),
];

/// The configuration of a [`ShuffleNetV2`](crate::ShuffleNetV2).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShuffleNetV2Config {
    /// Channels of the three stages, which are even, and of the last convolution.
    pub widths: [usize; 4],
    /// Number of classes, at least 1.
    pub classes: usize,
    /// Channels of the input images; 3 by default.
    #[serde(default = "three")]
    pub channels: usize,
    /// The layers before the first block. For [`Stem::ImageNet`], which is the default, the first convolution has a stride of 2 and a
    /// max-pool after it. For [`Stem::Cifar`] it has a stride of 1 and no max-pool.
    #[serde(default)]
    pub stem: Stem,
    /// Whether the blocks are made of kiln-layers' operations, which keep less for the backward pass; of burn's own otherwise. True by
    /// default.
    #[serde(default = "yes")]
    pub lean: bool,
}

impl ShuffleNetV2Config {
    /// The names that [`named`](Self::named) accepts.
    pub const NAMES: &'static str = "shufflenet_v2_x0_5, shufflenet_v2_x1_0, shufflenet_v2_x1_5, shufflenet_v2_x2_0";

    /// The configuration called `name`, one of [`NAMES`](Self::NAMES): 1.4, 2.3, 3.5 and 7.4 million parameters at 1000 classes (Ma et al.
    /// 2018, table 5).
    ///
    /// # Errors
    /// [`Error::UnknownModel`].
    pub fn named(name: &str, classes: usize) -> Result<Self, Error> {
        let unknown = || Error::UnknownModel { name: name.to_owned(), expected: Self::NAMES };
        let (_, widths) = SIZES.into_iter().find(|(known, _)| *known == name).ok_or_else(unknown)?;
        Ok(Self { widths, classes, channels: three(), stem: Stem::ImageNet, lean: yes() })
    }

    /// The name of these widths, `shufflenet_v2` if they have none.
    pub fn name(&self) -> &'static str {
        SIZES.into_iter().find(|(_, widths)| *widths == self.widths).map_or("shufflenet_v2", |(name, _)| name)
    }

    /// Sets the channels of the three stages, which must be even, and of the last convolution.
    pub fn with_widths(mut self, widths: [usize; 4]) -> Self {
        self.widths = widths;
        self
    }

    /// Sets the stride of the first convolution and whether a max-pool follows, by the [`Stem`].
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

    pub(super) fn check(&self) -> Result<(), Error> {
        let Self { classes, channels, widths, .. } = *self;
        positive([("classes", classes), ("channels", channels)])?;
        let [_, _, before, last] = widths;
        match widths.into_iter().zip([2, 2, 2, 1]).find(|(width, divisor)| *width == 0 || width % divisor != 0) {
            Some((width, 2)) => Err(odd(width, "even numbers above 0 for the three stages")),
            Some((width, _)) => Err(odd(width, "at least 1 for the last convolution")),
            None => Ok(()),
        }?;
        addressable("widths", before.max(last), &[before, last])?;
        addressable("channels", channels, &[3, 3, channels, 24])?;
        addressable("classes", classes, &[last, classes])
    }
}

fn odd(width: usize, expected: &str) -> Error {
    Error::InvalidConfig { field: "widths", value: width.to_string(), expected: expected.to_owned() }
}
