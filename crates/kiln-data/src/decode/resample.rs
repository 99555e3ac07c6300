use fast_image_resize::images::{Image as Resized, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};

use crate::Image;

use super::Area;

/// The area of `image`, whose channels are 1 or 3, at `[height, width]`, none of which is zero.
pub(super) fn crop_resize(image: Image, area: &Area, [height, width]: [usize; 2]) -> Image {
    if stays(area, [image.height, image.width], [height, width]) {
        return image;
    }
    let kind = if image.channels == 1 { PixelType::U8 } else { PixelType::U8x3 };
    let mut target = Resized::new(width as u32, height as u32, kind);
    let [top, rows] = clamp(area.top, area.height, image.height);
    let [left, columns] = clamp(area.left, area.width, image.width);
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear));
    let options = options.crop(left, top, columns, rows);
    let resized = ImageRef::new(image.width as u32, image.height as u32, &image.pixels, kind)
        .map_err(|e| e.to_string())
        .and_then(|source| Resizer::new().resize(&source, &mut target, &options).map_err(|e| e.to_string()));
    debug_assert_eq!(resized, Ok(()), "{area:?} of {}x{}", image.height, image.width);
    Image { pixels: target.into_vec(), height, width, channels: image.channels }
}

/// Whether there is nothing to do.
fn stays(area: &Area, source: [usize; 2], target: [usize; 2]) -> bool {
    *area == Area::whole(source[0], source[1]) && source == target
}

/// The part of `[first, first + length]` inside of `[0, size]`.
fn clamp(first: f64, length: f64, size: usize) -> [f64; 2] {
    let first = first.clamp(0.0, size as f64);
    [first, length.min(size as f64 - first)]
}

/// Bytes that [`crop_resize`] takes besides the image it is given, the result among them.
pub(super) fn bytes(area: &Area, source: [usize; 2], [height, width]: [usize; 2], channels: usize) -> u64 {
    if stays(area, source, [height, width]) {
        return 0;
    }
    let support = |length: f64, size: usize| (length / size as f64).max(1.0).ceil() as u64;
    // The vertical pass comes first and reads the columns that the horizontal one will need.
    let columns = (area.width.ceil() as u64 + 2 * support(area.width, width) + 2).min(source[1] as u64);
    let between = columns * height as u64 * channels as u64;
    // A weight is kept as an f64, then as 16 bits; each result has its bounds.
    let weights = |length: f64, size: usize| size as u64 * ((2 * support(length, size) + 1) * 10 + 64);
    let result = (height * width * channels) as u64;
    between + weights(area.height, height) + weights(area.width, width) + result
}
