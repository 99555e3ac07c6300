//! Encoder and sizes of a U-Net.

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::config::{addressable, one, positive, setters, sides, some_pixels, three, yes};

/// Number of times that the encoder halves the image. The decoder has as many blocks, which double it again.
pub(super) const LEVELS: usize = 5;

/// The classifier whose blocks are the encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
#[allow(missing_docs, reason = "named after the networks")]
pub enum UnetEncoder {
    #[serde(rename = "resnet18")]
    ResNet18,
    #[serde(rename = "resnet34")]
    ResNet34,
    #[serde(rename = "resnet50")]
    ResNet50,
    #[serde(rename = "resnet101")]
    ResNet101,
    #[serde(rename = "mobilenet_v2")]
    MobileNetV2,
}

impl UnetEncoder {
    /// All encoders.
    pub const ALL: [Self; 5] = [Self::ResNet18, Self::ResNet34, Self::ResNet50, Self::ResNet101, Self::MobileNetV2];
    /// The names that [`named`](Self::named) accepts.
    pub const NAMES: &'static str = "resnet18, resnet34, resnet50, resnet101, mobilenet_v2";

    /// torchvision's name of the classifier.
    pub fn name(self) -> &'static str {
        match self {
            Self::ResNet18 => "resnet18",
            Self::ResNet34 => "resnet34",
            Self::ResNet50 => "resnet50",
            Self::ResNet101 => "resnet101",
            Self::MobileNetV2 => "mobilenet_v2",
        }
    }

    /// The encoder called `name`, one of [`NAMES`](Self::NAMES).
    ///
    /// # Errors
    /// [`Error::UnknownModel`].
    pub fn named(name: &str) -> Result<Self, Error> {
        let unknown = || Error::UnknownModel { name: name.to_owned(), expected: Self::NAMES };
        Self::ALL.into_iter().find(|encoder| encoder.name() == name).ok_or_else(unknown)
    }
}

/// The configuration of a [`Unet`](crate::Unet).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnetConfig {
    /// Number of classes of a pixel, at least 1.
    pub classes: usize,
    /// Channels of the input images; 3 by default.
    #[serde(default = "three")]
    pub channels: usize,
    /// The encoder; ResNet-18 by default.
    #[serde(default = "resnet18")]
    pub encoder: UnetEncoder,
    /// Factor of the encoder's numbers of channels; 1 by default.
    #[serde(default = "one")]
    pub width: f64,
    /// Channels of the decoder's five blocks, from the smallest image to the largest; 256, 128, 64, 32, 16 by default.
    #[serde(default = "decoder")]
    pub decoder: [usize; LEVELS],
    /// Whether the blocks are made of kiln-layers' operations, which keep less for the backward pass; of burn's own otherwise. True by
    /// default.
    #[serde(default = "yes")]
    pub lean: bool,
}

fn resnet18() -> UnetEncoder {
    UnetEncoder::ResNet18
}
fn decoder() -> [usize; LEVELS] {
    [256, 128, 64, 32, 16]
}

setters! { UnetConfig:
    /// Sets the classifier whose blocks are the encoder.
    with_encoder(encoder: UnetEncoder);
    /// Sets the number of channels of the input images.
    with_channels(channels: usize);
    /// Sets the factor of the encoder's numbers of channels.
    with_width(width: f64);
    /// Sets the channels of the decoder's blocks, from the smallest image to the largest.
    with_decoder(decoder: [usize; LEVELS]);
    /// Sets whether the blocks use kiln-layers' operations (true) or burn's own (false).
    with_lean(lean: bool);
}

impl UnetConfig {
    /// A U-Net on ResNet-18 for images of three channels: 14.3 million parameters.
    pub fn new(classes: usize) -> Self {
        Self { classes, channels: three(), encoder: resnet18(), width: one(), decoder: decoder(), lean: yes() }
    }

    /// Checks that images of `[height, width]` pixels can be read: the encoder halves them five times.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] for a height or width that is not a multiple of 32.
    pub fn check_input(&self, size: [usize; 2]) -> Result<(), Error> {
        some_pixels(size)?;
        sides(size, |value| value.is_multiple_of(1 << LEVELS), "a multiple of 32")
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let Self { classes, channels, decoder, .. } = *self;
        positive([("classes", classes), ("channels", channels)])?;
        positive(decoder.map(|channels| ("decoder", channels)))?;
        let largest = decoder.into_iter().max().unwrap_or(1);
        addressable("decoder", largest, &[3, 3, largest, largest])?;
        addressable("classes", classes, &[3, 3, decoder[LEVELS - 1], classes])
    }
}
