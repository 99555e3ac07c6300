//! The format of an image file and the facts in its header.

use super::pixels::orientation::Orientation;

/// The format of an image file, told by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// JPEG, baseline or progressive.
    Jpeg,
    /// PNG, also animated.
    Png,
    /// TIFF and BigTIFF.
    Tiff,
    /// GIF.
    Gif,
    /// WebP, lossy or lossless.
    WebP,
    /// Windows bitmap.
    Bmp,
    /// PBM, PGM, PPM and PAM.
    Pnm,
}

/// The facts in the header of an image file.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Header {
    /// The format.
    pub format: Format,
    /// Rows of the upright image, with [`orientation`](Self::orientation) applied.
    pub height: usize,
    /// Columns of the upright image.
    pub width: usize,
    /// Colour channels in the file: 1 (gray), 3, 4 (CMYK), or the bands of a TIFF.
    pub channels: usize,
    /// Bits of a sample in the file.
    pub bits: u8,
    /// Whether the pixels have transparency, which decoding drops.
    pub alpha: bool,
    /// How the stored pixels are turned to be upright.
    pub orientation: Orientation,
    /// A JPEG in several scans or an interlaced PNG: no row is complete before all data are read.
    pub progressive: bool,
    /// Number of images in the file, if the header tells. The first one is decoded.
    pub frames: Option<u32>,
}

impl Header {
    /// `[height, width]` of the pixels in the file's own order.
    pub(super) fn stored_size(&self) -> [usize; 2] {
        self.orientation.size([self.height, self.width])
    }
}

/// The most pixels of an image: no count of bytes overflows below it.
pub(super) const MAX_PIXELS: usize = 1 << 40;
