//! Pictures of images, their true and their predicted classes, side by side.

use std::path::Path;

use anyhow::{Context, Result};
use image::{ImageFormat, Rgb, RgbImage};
use kiln_data::{Normalize, Raster, Samples, TileSet};

use super::score::ScoredRow;

/// Images that are shown at most.
const SHOWN: usize = 4;
/// Rows and columns of a picture at most. Larger images are shown with some of their pixels only.
const SIDE: usize = 400;
/// Pixels between the parts of a picture.
const GAP: usize = 8;
/// Bytes that reading a row of an image may take.
const LIMIT: u64 = 512 << 20;

/// Colours of the first classes (Okabe and Ito 2008, distinguishable for the colour-blind). Further classes have mixtures.
const COLOURS: [[u8; 3]; 8] = [
    [0, 114, 178],
    [0, 158, 115],
    [240, 228, 66],
    [230, 159, 0],
    [204, 121, 167],
    [86, 180, 233],
    [213, 94, 0],
    [120, 120, 120],
];

/// Pictures of the first images of a set, which are made while their rows are scored.
pub(super) struct Pictures<'a> {
    set: &'a TileSet,
    pictures: Vec<Picture>,
}

struct Picture {
    /// The distance between the rows and columns that are shown.
    step: usize,
    pixels: RgbImage,
    /// Whether its last row was scored. False for an image with a tile that cannot be read.
    is_complete: bool,
}

impl<'a> Pictures<'a> {
    pub(super) fn new(set: &'a TileSet) -> Self {
        let picture = |image| {
            let [height, width] = set.grid(image).size();
            let step = height.max(width).div_ceil(SIDE);
            let [height, width] = [height.div_ceil(step), width.div_ceil(step)];
            let white = Rgb([255; 3]);
            let pixels = RgbImage::from_pixel((3 * width + 2 * GAP) as u32, height as u32, white);
            Picture { step, pixels, is_complete: false }
        };
        Self { set, pictures: (0..set.images().min(SHOWN)).map(picture).collect() }
    }

    pub(super) fn add(&mut self, row: &ScoredRow<'_>) {
        let Some(picture) = self.pictures.get_mut(row.image) else { return };
        picture.is_complete = row.y + 1 == self.set.grid(row.image).size()[0];
        if !row.y.is_multiple_of(picture.step) {
            return;
        }
        let (y, width) = ((row.y / picture.step) as u32, row.truth.len().div_ceil(picture.step));
        let at = |part: usize, x: usize| (part * (width + GAP) + x) as u32;
        for x in 0..width {
            let pixel = x * picture.step;
            picture.pixels.put_pixel(at(1, x), y, class_colour(row.truth[pixel]));
            picture.pixels.put_pixel(at(2, x), y, class_colour(row.predicted[pixel].into()));
        }
    }

    /// Returns the pictures as PNG, with the names of the images. The images are read here.
    pub(super) fn finish(self, normalize: &Normalize) -> Result<Vec<(String, Vec<u8>)>> {
        let mut files = vec![];
        for (image, mut picture) in self.pictures.into_iter().enumerate().filter(|(_, picture)| picture.is_complete) {
            let path = self.set.path(image);
            let of_image = every_nth_pixel(path, picture.step, normalize)?;
            image::imageops::replace(&mut picture.pixels, &of_image, 0, 0);
            let mut png = std::io::Cursor::new(vec![]);
            picture.pixels.write_to(&mut png, ImageFormat::Png).context("cannot write a picture")?;
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            files.push((name, png.into_inner()));
        }
        Ok(files)
    }
}

/// Every `step`th row and column of an image in colours for display: its first three bands, or its first one in gray.
///
/// # Errors
/// Those of reading the image.
pub fn every_nth_pixel(path: &Path, step: usize, normalize: &Normalize) -> Result<RgbImage, kiln_data::Error> {
    let mut raster = Raster::open(path, LIMIT)?;
    let (bands, height, width) = (raster.bands(), raster.height(), raster.width());
    let mut pixels = RgbImage::new(width.div_ceil(step) as u32, height.div_ceil(step) as u32);
    for y in (0..height).step_by(step) {
        let samples = raster.window(y, 0, 1, width)?.samples;
        for (column, x) in (0..width).step_by(step).enumerate() {
            let channel = |channel: usize| {
                let band = if bands >= 3 { channel } else { 0 };
                shown(&samples, x * bands + band, normalize, band)
            };
            pixels.put_pixel(column as u32, (y / step) as u32, Rgb([0, 1, 2].map(channel)));
        }
    }
    Ok(pixels)
}

/// A sample as a byte. Samples of other types are mapped from two deviations below to two above their mean.
fn shown(samples: &Samples, at: usize, Normalize { mean, std }: &Normalize, band: usize) -> u8 {
    match samples {
        Samples::U8(samples) => samples[at],
        Samples::F32(samples) => (((samples[at] - mean[band]) / std[band] + 2.0) / 4.0 * 255.0).clamp(0.0, 255.0) as u8,
        _ => 0,
    }
}

/// The colour of a class; white for pixels without one.
pub fn class_colour(class: i64) -> Rgb<u8> {
    let Ok(class) = u8::try_from(class) else { return Rgb([255; 3]) };
    if class == u8::MAX {
        return Rgb([255; 3]);
    }
    let first = COLOURS[usize::from(class) % COLOURS.len()];
    let round = usize::from(class) / COLOURS.len();
    let second = COLOURS[(usize::from(class) + round) % COLOURS.len()];
    Rgb([0, 1, 2].map(|channel| ((usize::from(first[channel]) + usize::from(second[channel])) / 2) as u8))
}
