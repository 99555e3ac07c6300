//! 8-bit pixels of any colour model to gray or RGB, as Pillow's `convert("L")` and `convert("RGB")` do.

/// The meaning of the samples of a pixel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColourModel {
    Gray,
    GrayAlpha,
    Rgb,
    Rgba,
    /// 255 is full ink.
    Cmyk,
    CmykAlpha,
    YCbCr,
}

impl ColourModel {
    /// Samples in a pixel.
    pub(crate) fn samples(self) -> usize {
        match self {
            Self::Gray => 1,
            Self::GrayAlpha => 2,
            Self::Rgb | Self::YCbCr => 3,
            Self::Rgba | Self::Cmyk => 4,
            Self::CmykAlpha => 5,
        }
    }

    /// Channels that are kept when `asked` are wanted: gray becomes RGB at the very end.
    pub(crate) fn kept(self, asked: usize) -> usize {
        if matches!(self, Self::Gray | Self::GrayAlpha) { 1 } else { asked }
    }

    /// Divides the colours of pixels by their alpha, with which they were multiplied; without alpha, they stay. Pixels
    /// that are not visible become black (Pillow, `Unpack.c`, `unpackRGBa`).
    pub(crate) fn divide_by_alpha(self, pixels: &mut [u8]) {
        if !matches!(self, Self::GrayAlpha | Self::Rgba | Self::CmykAlpha) {
            return;
        }
        for pixel in pixels.chunks_exact_mut(self.samples()) {
            let Some((alpha, colours)) = pixel.split_last_mut() else { continue };
            let divided = |colour: u8| (255 * u32::from(colour)).checked_div(u32::from(*alpha)).unwrap_or(0).min(255);
            colours.iter_mut().for_each(|colour| *colour = divided(*colour) as u8);
        }
    }

    /// Reads a row of pixels into `out`, which has room for `channels` (see [`kept`](Self::kept)) samples of each.
    pub(crate) fn convert(self, row: &[u8], channels: usize, out: &mut [u8]) {
        fn each<const S: usize, const D: usize>(row: &[u8], out: &mut [u8], f: impl Fn([u8; S]) -> [u8; D]) {
            for (pixel, out) in row.as_chunks::<S>().0.iter().zip(out.as_chunks_mut::<D>().0) {
                *out = f(*pixel);
            }
        }
        match (self, channels) {
            (Self::Gray, _) => out.copy_from_slice(row),
            (Self::GrayAlpha, _) => each(row, out, |[gray, _]| [gray]),
            (Self::Rgb, 3) => out.copy_from_slice(row),
            (Self::Rgb, _) => each(row, out, luma),
            (Self::Rgba, 3) => each(row, out, |[r, g, b, _]| [r, g, b]),
            (Self::Rgba, _) => each(row, out, |[r, g, b, _]| luma([r, g, b])),
            (Self::Cmyk, 3) => each(row, out, cmyk_to_rgb),
            (Self::Cmyk, _) => each(row, out, |pixel| luma(cmyk_to_rgb(pixel))),
            (Self::CmykAlpha, 3) => each(row, out, |[c, m, y, k, _]| cmyk_to_rgb([c, m, y, k])),
            (Self::CmykAlpha, _) => each(row, out, |[c, m, y, k, _]| luma(cmyk_to_rgb([c, m, y, k]))),
            (Self::YCbCr, 3) => each(row, out, ycbcr_to_rgb),
            (Self::YCbCr, _) => each(row, out, |pixel| luma(ycbcr_to_rgb(pixel))),
        }
    }

    /// [`convert`](Self::convert) for all pixels of an image, in place.
    pub(crate) fn convert_in_place(self, pixels: &mut Vec<u8>, channels: usize) {
        let samples = self.samples();
        if samples == channels && matches!(self, Self::Gray | Self::Rgb) {
            return;
        }
        // No pixel grows, so that writing never reaches pixels that are not read yet.
        const BATCH: usize = 256;
        let mut batch = [0; BATCH * 5];
        let count = pixels.len() / samples;
        for first in (0..count).step_by(BATCH) {
            let many = BATCH.min(count - first);
            let read = &mut batch[..many * samples];
            read.copy_from_slice(&pixels[first * samples..(first + many) * samples]);
            self.convert(read, channels, &mut pixels[first * channels..(first + many) * channels]);
        }
        pixels.truncate(count * channels);
        pixels.shrink_to_fit();
    }
}

/// ITU-R 601 luma in 16-bit fixed point (Pillow, `Convert.c`, `L24`).
fn luma([r, g, b]: [u8; 3]) -> [u8; 1] {
    let [r, g, b] = [r, g, b].map(u32::from);
    [((r * 19595 + g * 38470 + b * 7471 + 0x8000) >> 16) as u8]
}

/// The product of two fractions of 255, rounded (Pillow, `ImagingUtils.h`, `MULDIV255`).
fn multiply(a: u8, b: u8) -> u8 {
    let product = u32::from(a) * u32::from(b) + 128;
    (((product >> 8) + product) >> 8) as u8
}

fn cmyk_to_rgb([c, m, y, k]: [u8; 4]) -> [u8; 3] {
    let paper = 255 - k;
    [c, m, y].map(|ink| paper - multiply(ink, paper))
}

/// Full-range ITU-R 601, as in JFIF (ITU-T T.871, section 7).
fn ycbcr_to_rgb([y, cb, cr]: [u8; 3]) -> [u8; 3] {
    let [y, cb, cr] = [f32::from(y), f32::from(cb) - 128.0, f32::from(cr) - 128.0];
    // The conversion to u8 saturates.
    [y + 1.402 * cr, y - 0.344_136 * cb - 0.714_136 * cr, y + 1.772 * cb].map(|sample| sample.round() as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [ColourModel; 7] = [
        ColourModel::Gray,
        ColourModel::GrayAlpha,
        ColourModel::Rgb,
        ColourModel::Rgba,
        ColourModel::Cmyk,
        ColourModel::CmykAlpha,
        ColourModel::YCbCr,
    ];

    #[test]
    fn whole_images_convert_as_their_rows_do() {
        for (pixels, asked) in ALL.into_iter().flat_map(|pixels| [(pixels, 1), (pixels, 3)]) {
            let channels = pixels.kept(asked);
            let mut image: Vec<u8> = (0..1000 * pixels.samples()).map(|i| (i * 41 % 253) as u8).collect();
            let mut expected = vec![0; 1000 * channels];
            pixels.convert(&image, channels, &mut expected);
            pixels.convert_in_place(&mut image, channels);
            assert_eq!(image, expected, "{pixels:?} to {channels}");
        }
    }

    #[test]
    fn colours_are_divided_by_their_alpha() {
        let divided = |model: ColourModel, pixel: &[u8]| {
            let mut pixel = pixel.to_vec();
            model.divide_by_alpha(&mut pixel);
            pixel
        };
        assert_eq!(divided(ColourModel::Rgba, &[100, 50, 0, 128, 7, 8, 9, 255]), [199, 99, 0, 128, 7, 8, 9, 255]);
        assert_eq!(divided(ColourModel::GrayAlpha, &[200, 100, 3, 0]), [255, 100, 0, 0]);
        assert_eq!(divided(ColourModel::Rgb, &[200, 100, 3]), [200, 100, 3]);
    }

    #[test]
    fn known_colours() {
        assert_eq!([[255, 255, 255], [255, 0, 0], [0, 255, 0], [0, 0, 255]].map(luma), [[255], [76], [150], [29]]);
        assert_eq!(cmyk_to_rgb([0, 0, 0, 0]), [255; 3]);
        assert_eq!(cmyk_to_rgb([255, 0, 0, 0]), [0, 255, 255]);
        assert_eq!(cmyk_to_rgb([9, 99, 199, 255]), [0; 3]);
        assert_eq!(ycbcr_to_rgb([128, 128, 128]), [128; 3]);
        assert_eq!(ycbcr_to_rgb([76, 85, 255]), [254, 0, 0]);
    }
}
