//! How images are decoded: quality, limit, the policies for images above the limit and for damaged ones, and the ways to decode.

use serde::{Deserialize, Serialize};

/// How an image is made smaller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quality {
    /// Uses all pixels, as torchvision and Pillow do.
    #[default]
    Exact,
    /// Uses fewer pixels: a JPEG is decoded through a smaller inverse transform, rows and tiles are averaged over boxes, both
    /// to at least twice the size of the result on each side. The mean error is about one 8-bit level (Pillow's `draft` and
    /// `reducing_gap=2.0`).
    Fast,
}

/// The policy for images that take more bytes than the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Oversized {
    /// It is decoded with [`Quality::Fast`]; it is an error only if that takes more than the limit too.
    #[default]
    Reduce,
    /// It is an error.
    Refuse,
}

/// The policy for damaged images whose pixels can still be decoded as they were stored. Their damage is bytes between the segments of a
/// JPEG that belong to none, a segment of Adobe that is cut short, or a missing end marker.
/// An image that is cut short, or whose coded pixels are damaged, is an error under both policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Damage {
    /// It is read, as by libjpeg and Pillow. A loader counts it ([`LoaderStats`](crate::LoaderStats)).
    #[default]
    Repair,
    /// It is an error.
    Refuse,
}

/// How images are decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct DecodeOptions {
    /// How an image is made smaller.
    pub quality: Quality,
    /// Bytes that decoding one image may take.
    pub limit: u64,
    /// The policy for images that take more.
    pub oversized: Oversized,
    /// The policy for damaged images that can be read.
    pub damage: Damage,
}

impl Default for DecodeOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl DecodeOptions {
    /// Options with exact quality and a limit of 512 MiB. Larger images are reduced, and damage is repaired.
    pub const fn new() -> Self {
        Self { quality: Quality::Exact, limit: 512 << 20, oversized: Oversized::Reduce, damage: Damage::Repair }
    }

    /// Sets how an image is made smaller.
    #[must_use]
    pub const fn with_quality(self, quality: Quality) -> Self {
        Self { quality, ..self }
    }

    /// Sets the bytes that decoding one image may take.
    #[must_use]
    pub const fn with_limit(self, limit: u64) -> Self {
        Self { limit, ..self }
    }

    /// Sets the policy for images that take more than the limit.
    #[must_use]
    pub const fn with_oversized(self, oversized: Oversized) -> Self {
        Self { oversized, ..self }
    }

    /// Sets the policy for damaged images that can be read.
    #[must_use]
    pub const fn with_damage(self, damage: Damage) -> Self {
        Self { damage, ..self }
    }
}

/// The pixels that are decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DecodePath {
    /// All pixels.
    Whole,
    /// The image at 1 / `denominator`, by an inverse cosine transform of fewer coefficients.
    ScaledJpeg {
        /// 2, 4 or 8.
        denominator: usize,
    },
    /// The rows down to the end of the area, averaged over boxes while they are decoded.
    Rows {
        /// Rows and columns of a box.
        factor: usize,
    },
    /// The strips or tiles that touch the area, averaged over boxes while they are decoded.
    Tiles {
        /// Rows and columns of a box.
        factor: usize,
    },
}

impl DecodePath {
    /// Pixels of the file, per side, that become one decoded pixel.
    pub(super) fn factor(self) -> usize {
        match self {
            Self::Whole => 1,
            Self::ScaledJpeg { denominator } => denominator,
            Self::Rows { factor } | Self::Tiles { factor } => factor,
        }
    }
}
