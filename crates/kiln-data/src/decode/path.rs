//! The ways in which the pixels of a file can be decoded.

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
