//! An image in memory: 8 bits a sample.

/// An image of 8-bit samples, row by row, the channels of a pixel side by side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// `height * width * channels` samples.
    pub pixels: Vec<u8>,
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
    /// Samples per pixel: 1 (gray) or 3 (RGB).
    pub channels: usize,
}
