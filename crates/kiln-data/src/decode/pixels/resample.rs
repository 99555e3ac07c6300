//! Crops and resizes an image, and tells the bytes that this takes.

use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::{U8, U8x3};
use fast_image_resize::{FilterType, PixelTrait, ResizeAlg, ResizeOptions, Resizer};

use super::image::{Area, Image};

/// The area of `image`, whose channels are 1 or 3, at `[height, width]`, none of which is zero.
///
/// # Errors
/// Why an area or an image cannot be resized; its pixels would stay black.
pub(crate) fn crop_resize(image: Image, area: &Area, [height, width]: [usize; 2]) -> Result<Image, String> {
    if stays(area, [image.height, image.width], [height, width]) {
        return Ok(image);
    }
    let mut pixels = vec![0; height * width * image.channels];
    let [top, rows] = clamp(area.top, area.height, image.height);
    let [left, columns] = clamp(area.left, area.width, image.width);
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear));
    let options = options.crop(left, top, columns, rows);
    // Of an empty area the library resizes nothing, without an error.
    let is_part = top >= 0.0 && left >= 0.0 && rows > 0.0 && columns > 0.0;
    // The two kinds of pixels by name: `Resizer::resize` would compile the kernels of all ten.
    let resized = match image.channels {
        _ if !is_part => Err("no part of the image".to_owned()),
        1 => resize::<U8>(&image, &mut pixels, [height, width], &options),
        _ => resize::<U8x3>(&image, &mut pixels, [height, width], &options),
    };
    let failed = |reason: String| {
        let (Area { top, left, height: rows, width: columns }, of) = (area, [image.height, image.width]);
        format!("{rows}x{columns} pixels at ({top}, {left}) of {}x{} to {height}x{width}: {reason}", of[0], of[1])
    };
    resized.map_err(failed)?;
    Ok(Image { pixels, height, width, channels: image.channels })
}

fn resize<P: PixelTrait>(
    image: &Image,
    pixels: &mut [u8],
    [height, width]: [usize; 2],
    options: &ResizeOptions,
) -> Result<(), String> {
    let source = TypedImageRef::<P>::from_buffer(image.width as u32, image.height as u32, &image.pixels);
    let target = TypedImage::<P>::from_buffer(width as u32, height as u32, pixels);
    let (source, mut target) = (source.map_err(|e| e.to_string())?, target.map_err(|e| e.to_string())?);
    Resizer::new().resize_typed(&source, &mut target, options).map_err(|e| e.to_string())
}

/// Whether the image stays as it is.
fn stays(area: &Area, source: [usize; 2], target: [usize; 2]) -> bool {
    *area == Area::whole(source[0], source[1]) && source == target
}

/// The part of `[first, first + length]` within `[0, size]`.
fn clamp(first: f64, length: f64, size: usize) -> [f64; 2] {
    let first = first.clamp(0.0, size as f64);
    [first, length.min(size as f64 - first)]
}

/// Bytes that [`crop_resize`] takes besides the image it is given, the result among them.
pub(crate) fn bytes(area: &Area, source: [usize; 2], [height, width]: [usize; 2], channels: usize) -> u64 {
    if stays(area, source, [height, width]) { 0 } else { most_bytes(area, source, [height, width], channels) }
}

/// An upper bound for all areas up to this one, which may need resizing when this one does not.
pub(crate) fn most_bytes(area: &Area, source: [usize; 2], [height, width]: [usize; 2], channels: usize) -> u64 {
    let support = |length: f64, size: usize| (length / size as f64).max(1.0).ceil() as u64;
    // The vertical pass comes first and reads the columns that the horizontal one will need.
    let columns = (area.width.ceil() as u64 + 2 * support(area.width, width) + 2).min(source[1] as u64);
    let between = columns * height as u64 * channels as u64;
    // A weight is kept as an f64, then as 16 bits; each result has its bounds.
    let weights = |length: f64, size: usize| size as u64 * ((2 * support(length, size) + 1) * 10 + 64);
    let result = (height * width * channels) as u64;
    between + weights(area.height, height) + weights(area.width, width) + result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_resized_is_an_error_and_no_black_image() {
        let image = |pixels: usize| Image { pixels: vec![200; pixels], height: 4, width: 6, channels: 3 };
        let whole = Area::whole(4, 6);
        assert!(crop_resize(image(72), &whole, [2, 3]).unwrap().pixels.iter().all(|sample| *sample == 200));
        for (pixels, area) in [
            (71, whole), // fewer pixels than its size
            (72, Area { top: f64::NAN, ..whole }),
            (72, Area { height: 0.0, ..whole }),
        ] {
            let error = crop_resize(image(pixels), &area, [2, 3]).unwrap_err();
            assert!(error.contains(" of 4x6 to 2x3: "), "{error}");
        }
    }
}
