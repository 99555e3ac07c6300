//! The part of an image that is asked for and the size that it is resized to.

use crate::error::Error;

use super::image::{Area, Image};
use super::orientation::Orientation;
use super::resample;

/// The longest side of a result: no count of bytes overflows.
const MAX_SIDE: usize = 1 << 20;

/// A part of an image, resized, and mirrored or not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct View {
    /// The part, in pixels of the upright image.
    pub area: Area,
    /// Rows of the result.
    pub height: usize,
    /// Columns of the result.
    pub width: usize,
    /// Mirror left to right.
    pub flip: bool,
}

impl View {
    /// The whole image at its own size.
    pub fn whole(height: usize, width: usize) -> Self {
        Self { area: Area::whole(height, width), height, width, flip: false }
    }

    /// Sets the size of the result: `height` rows and `width` columns.
    #[must_use]
    pub fn with_size(self, height: usize, width: usize) -> Self {
        Self { height, width, ..self }
    }

    /// Cuts the view out of an image in memory, and resizes it with the bilinear filter of Pillow, which widens when it shrinks the image.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for an image without pixels or with other than 1 or 3 channels, for an area that is
    /// empty or not within the image, and for a result without pixels.
    pub fn apply(&self, image: Image) -> Result<Image, Error> {
        if ![1, 3].contains(&image.channels)
            || image.pixels.is_empty()
            || image.pixels.len() != image.height * image.width * image.channels
        {
            return Err(Error::InvalidSetting {
                name: "image",
                value: format!("{}x{}x{}", image.height, image.width, image.channels),
                expected: "1 or 3 channels and at least one pixel",
            });
        }
        self.check(image.height, image.width)?;
        let resized = resample::crop_resize(image, &self.area, [self.height, self.width]);
        let expected = "a part of the image that can be resized";
        let resized = resized.map_err(|value| Error::InvalidSetting { name: "area", value, expected })?;
        Ok(if self.flip { Orientation::default().then_mirror().apply(resized) } else { resized })
    }

    /// Whether an image of this size has the view.
    pub(crate) fn check(&self, height: usize, width: usize) -> Result<(), Error> {
        let Area { top, left, height: rows, width: columns } = self.area;
        // Sums of fractions have rounding errors.
        let within = |first: f64, length: f64, size: usize| {
            first >= 0.0 && length > 0.0 && first + length <= size as f64 * (1.0 + 1e-9)
        };
        if !(within(top, rows, height) && within(left, columns, width)) {
            let value = format!("{rows}x{columns} at ({top}, {left}) of a {height}x{width} image");
            return Err(Error::setting("area", value, "a part of the image"));
        }
        let side = 1..=MAX_SIDE;
        if !(side.contains(&self.height) && side.contains(&self.width)) {
            let value = format!("{}x{}", self.height, self.width);
            return Err(Error::InvalidSetting {
                name: "size of the result",
                value,
                expected: "1x1 to 1048576x1048576",
            });
        }
        Ok(())
    }
}
