//! GIF, WebP, BMP and PNM, decoded whole by the `image` crate.

use std::io::{BufRead, Read, Seek};

use image::{ColorType, ImageDecoder, ImageFormat, ImageReader, Limits};

use crate::decode::header::{Format, Header};
use crate::decode::patched::Patched;
use crate::decode::pixels::colour::ColourModel;
use crate::decode::pixels::image::Image;
use crate::decode::pixels::orientation::Orientation;
use crate::decode::source::{Reader, Reason};

use super::{gif, webp};

/// The result of decoding by the `image` crate.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Layout {
    format: Format,
    pixels: ColourModel,
    bytes_per_sample: usize,
    /// Bytes that decoding takes at its peak besides the decoded pixels.
    inside: u64,
}

fn open<'a, R>(reader: R, format: Format, max_alloc: u64) -> Result<Box<dyn ImageDecoder + 'a>, Reason>
where
    R: BufRead + Seek + 'a,
{
    fn boxed<'a, R>(reader: R, format: ImageFormat) -> Result<Box<dyn ImageDecoder + 'a>, image::ImageError>
    where
        R: BufRead + Seek + 'a,
    {
        Ok(Box::new(ImageReader::with_format(reader, format).into_decoder()?))
    }
    let decoder = match format {
        Format::Gif => boxed(Patched::new(reader, gif::Blocks::default()), ImageFormat::Gif),
        Format::WebP => boxed(reader, ImageFormat::WebP),
        Format::Bmp => boxed(reader, ImageFormat::Bmp),
        _ => boxed(reader, ImageFormat::Pnm),
    };
    let mut decoder = decoder?;
    let mut limits = Limits::no_limits();
    limits.max_alloc = Some(max_alloc);
    // The reader's own limits do not hold for a decoder taken out of it.
    decoder.set_limits(limits)?;
    Ok(decoder)
}

/// The most bytes that reading a header takes.
const HEADER_BYTES: u64 = 1 << 20;

/// The header of a PNM is text of any length, which its decoder keeps and repeats in its errors.
const PNM_HEADER: u64 = 1 << 16;

pub(crate) fn header(reader: &mut Reader, format: Format) -> Result<(Header, Layout), Reason> {
    let mut limited = reader.take(if format == Format::Pnm { PNM_HEADER } else { u64::MAX });
    let opened = open(&mut limited, format, HEADER_BYTES).map(|decoder| (decoder.dimensions(), decoder.color_type()));
    if opened.is_err() && limited.limit() == 0 {
        return Err(format!("the header of the PNM takes more than {PNM_HEADER} bytes").into());
    }
    let ((width, height), colour) = opened?;
    if height == 0 || width == 0 {
        return Err(format!("{height}x{width} pixels, expected at least 1x1").into());
    }
    let pixels = match colour {
        ColorType::L8 | ColorType::L16 => ColourModel::Gray,
        ColorType::La8 | ColorType::La16 => ColourModel::GrayAlpha,
        ColorType::Rgb8 | ColorType::Rgb16 => ColourModel::Rgb,
        ColorType::Rgba8 | ColorType::Rgba16 => ColourModel::Rgba,
        other => return Err(Reason::Unsupported(format!("{other:?} samples, expected 8 or 16 bits"))),
    };
    let bytes_per_sample = usize::from(colour.bytes_per_pixel()) / pixels.samples();
    let size = [height as usize, width as usize];
    let alpha = matches!(pixels, ColourModel::GrayAlpha | ColourModel::Rgba);
    reader.rewind()?;
    let (orientation, inside) = match format {
        Format::WebP => {
            let chunks = webp::read(reader, size, alpha)?;
            (chunks.orientation, chunks.inside)
        }
        Format::Gif => (Orientation::default(), gif::inside(reader, size)?),
        // One stored row.
        _ => (Orientation::default(), 4 * u64::from(width)),
    };
    let [height, width] = orientation.size(size);
    let header = Header {
        format,
        height,
        width,
        channels: if matches!(pixels, ColourModel::Gray | ColourModel::GrayAlpha) { 1 } else { 3 },
        bits: 8 * bytes_per_sample as u8,
        alpha,
        orientation,
        progressive: false,
        frames: if matches!(format, Format::Bmp | Format::Pnm) { Some(1) } else { None },
    };
    Ok((header, Layout { format, pixels, bytes_per_sample, inside }))
}

impl Layout {
    pub(crate) fn kept(&self, asked: usize) -> usize {
        self.pixels.kept(asked)
    }

    /// Bytes that decoding takes at its peak, the decoded pixels included.
    pub(crate) fn bytes(&self, [height, width]: [usize; 2]) -> u64 {
        let pixels = (height * width) as u64;
        let decoded = pixels * (self.pixels.samples() * self.bytes_per_sample) as u64;
        decoded + self.inside + STATE
    }

    pub(crate) fn decode(&self, reader: Reader, size: [usize; 2], channels: usize) -> Result<Image, Reason> {
        let decoder = open(reader, self.format, self.bytes(size))?;
        let (width, height) = decoder.dimensions();
        let [height, width] = [height as usize, width as usize];
        let mut pixels = vec![0; height * width * self.pixels.samples() * self.bytes_per_sample];
        if decoder.total_bytes() != pixels.len() as u64 {
            return Err(format!("{} bytes of pixels, expected {}", decoder.total_bytes(), pixels.len()).into());
        }
        decoder.read_image(&mut pixels)?;
        if self.bytes_per_sample == 2 {
            for i in 0..pixels.len() / 2 {
                pixels[i] = (u16::from_ne_bytes([pixels[2 * i], pixels[2 * i + 1]]) >> 8) as u8;
            }
            pixels.truncate(pixels.len() / 2);
            pixels.shrink_to_fit();
        }
        self.pixels.convert_in_place(&mut pixels, channels);
        Ok(Image { pixels, height, width, channels })
    }
}

const STATE: u64 = 128 * 1024;
