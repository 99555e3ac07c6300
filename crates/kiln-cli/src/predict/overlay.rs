//! An image with the colours of predicted classes over it, and a legend beside it.

use std::path::Path;

use anyhow::{Context, Result};
use image::{ImageFormat, Rgb, RgbImage};
use kiln_data::{Normalize, printable};
use kiln_runs::replace;

use super::legend::legend;
use super::outcome::Shares;
use crate::pipelines::segment::{class_colour, every_nth_pixel};

/// Rows and columns of a picture at most. Larger images are shown with some of their pixels only.
const SIDE: usize = 2048;
/// The legend grows by one size for each so many columns of the image.
const LEGEND_STEP: u32 = 700;
/// The weight of a class's colour; the rest is the image.
const WEIGHT: f64 = 0.5;
/// Pixels between the image and its legend.
const GAP: u32 = 8;

/// The colours of the classes of an image, which are added row by row.
pub(super) struct Overlay {
    step: usize,
    colours: RgbImage,
}

impl Overlay {
    /// An empty overlay for an image of this size.
    pub(super) fn new([height, width]: [usize; 2]) -> Self {
        let step = height.max(width).div_ceil(SIDE).max(1);
        Self { step, colours: RgbImage::new(width.div_ceil(step) as u32, height.div_ceil(step) as u32) }
    }

    /// Adds the classes of row `y`.
    pub(super) fn add(&mut self, y: usize, ids: &[u16]) {
        if !y.is_multiple_of(self.step) {
            return;
        }
        for (x, id) in ids.iter().step_by(self.step).enumerate() {
            self.colours.put_pixel(x as u32, (y / self.step) as u32, class_colour((*id).into()));
        }
    }

    /// Writes the picture to `path`: the image at `image` under the colours, and a legend of its classes with their shares.
    pub(super) fn write(
        self,
        image: &Path,
        normalize: &Normalize,
        shares: &Shares,
        classes: &[String],
        path: &Path,
    ) -> Result<()> {
        let mut pixels = every_nth_pixel(image, self.step, normalize)?;
        for (pixel, colour) in pixels.pixels_mut().zip(self.colours.pixels()) {
            *pixel = mixed(*pixel, *colour);
        }
        let entry = |(class, share): &(usize, f64)| {
            (class_colour(*class as i64), format!("{} {:.1} %", classes[*class], 100.0 * share))
        };
        let scale = pixels.width().max(pixels.height()).div_ceil(LEGEND_STEP);
        let legend = legend(&shares.iter().map(entry).collect::<Vec<_>>(), scale);
        let picture = beside(&pixels, &legend);
        let mut png = std::io::Cursor::new(vec![]);
        picture.write_to(&mut png, ImageFormat::Png).with_context(|| format!("cannot write '{}'", printable(&path)))?;
        Ok(replace(path, &png.into_inner())?)
    }
}

fn mixed(image: Rgb<u8>, colour: Rgb<u8>) -> Rgb<u8> {
    let channel = |i: usize| f64::from(image[i]) * (1.0 - WEIGHT) + f64::from(colour[i]) * WEIGHT;
    Rgb([0, 1, 2].map(|i| channel(i).round() as u8))
}

fn beside(left: &RgbImage, right: &RgbImage) -> RgbImage {
    let (width, height) = (left.width() + GAP + right.width(), left.height().max(right.height()));
    let mut both = RgbImage::from_pixel(width, height, Rgb([255; 3]));
    image::imageops::replace(&mut both, left, 0, 0);
    image::imageops::replace(&mut both, right, (left.width() + GAP).into(), 0);
    both
}

#[cfg(test)]
mod tests {
    use super::Overlay;
    use crate::pipelines::segment::class_colour;

    #[test]
    fn large_images_are_shown_by_some_of_their_pixels() {
        let mut overlay = Overlay::new([5000, 3]);
        assert_eq!((overlay.step, overlay.colours.width(), overlay.colours.height()), (3, 1, 1667));
        overlay.add(3, &[2, 0, 0]);
        overlay.add(4, &[1, 1, 1]);
        assert_eq!(*overlay.colours.get_pixel(0, 1), class_colour(2));
    }
}
