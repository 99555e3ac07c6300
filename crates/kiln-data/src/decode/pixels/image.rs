//! An image in memory, of 8 bits a sample, and the rectangles in it.

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

/// A rectangle in an image, in pixels. Its corners may be fractions of pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Area {
    /// First row.
    pub top: f64,
    /// First column.
    pub left: f64,
    /// Rows.
    pub height: f64,
    /// Columns.
    pub width: f64,
}

impl Area {
    /// The whole image.
    pub fn whole(height: usize, width: usize) -> Self {
        Self { top: 0.0, left: 0.0, height: height as f64, width: width as f64 }
    }
}

/// Whole rows and columns of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rect {
    pub(crate) top: usize,
    pub(crate) left: usize,
    pub(crate) bottom: usize,
    pub(crate) right: usize,
}

impl Rect {
    pub(crate) fn whole([bottom, right]: [usize; 2]) -> Self {
        Self { top: 0, left: 0, bottom, right }
    }

    /// `[rows, columns]`.
    pub(crate) fn size(&self) -> [usize; 2] {
        [self.bottom - self.top, self.right - self.left]
    }

    /// The pixels that a filter which shrinks `area` to `target` reads, cut at multiples of `factor`.
    pub(crate) fn around(area: &Area, target: [usize; 2], factor: usize, size: [usize; 2]) -> Self {
        let side = |first: f64, length: f64, target: usize, size: usize| {
            let margin = (length / target as f64).max(factor as f64).ceil() + factor as f64;
            let first_pixel = (first - margin).max(0.0) as usize / factor * factor;
            (first_pixel, ((first + length + margin).ceil() as usize).min(size))
        };
        let (top, bottom) = side(area.top, area.height, target[0], size[0]);
        let (left, right) = side(area.left, area.width, target[1], size[1]);
        Self { top, left, bottom, right }
    }
}
