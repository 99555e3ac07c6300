//! A rectangle in an image whose corners need not be whole pixels.

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
