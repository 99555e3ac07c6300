//! Decodes the pixels of a JPEG, whole or through a smaller inverse transform.

mod header;
mod layout;
mod segments;
#[cfg(feature = "turbo")]
mod turbo;

use std::io::{self, BufRead, Read, Seek, SeekFrom};

use jpeg_decoder::PixelFormat;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;

use crate::decode::options::DecodePath;
use crate::decode::pixels::colour::ColourModel;
use crate::decode::pixels::image::Image;
use crate::decode::source::{Reader, Reason};

use segments::{Adapted, adapted};

pub(crate) use header::header;
pub(crate) use layout::Layout;

/// Decodes the pixels to 1 or 3 channels. Returns also the damage that was read over.
pub(crate) fn decode(
    layout: &Layout,
    mut reader: Reader,
    path: DecodePath,
    channels: usize,
) -> Result<(Image, Option<&'static str>), Reason> {
    #[cfg(feature = "turbo")]
    if layout.turbo() {
        return turbo::decode(layout, reader, path.factor(), channels);
    }
    if !layout.sequential() && !ends(&mut reader, layout.first_scan)? {
        return Err("the JPEG is cut short: it has no end marker".into());
    }
    let (reader, found) = adapted(reader, layout)?;
    let image = match path {
        DecodePath::ScaledJpeg { denominator } => scaled(reader, denominator, channels),
        _ if layout.adobe_rgb => scaled(reader, 1, channels),
        _ => whole(reader, layout.pixels(), channels),
    };
    match (image, found.first()) {
        (Ok(image), damage) => Ok((image, damage)),
        (Err(Reason::Damaged(reason)), Some(damage)) => {
            Err(format!("the JPEG is cut short or damaged: {damage} ({reason})").into())
        }
        (Err(Reason::Damaged(reason)), None) if reason.contains("uffman") => {
            Err(format!("its coded pixels are damaged or end too early ({reason})").into())
        }
        (Err(reason), _) => Err(reason),
    }
}

/// Whether a file of several scans has the image's end marker. zune-jpeg does not detect that the last row of blocks is
/// missing.
fn ends(reader: &mut Reader, first_scan: u64) -> io::Result<bool> {
    const END: [u8; 2] = [0xff, 0xd9];
    let mut last = [0; 2];
    let length = reader.seek(SeekFrom::End(-2))?;
    reader.read_exact(&mut last)?;
    if last == END && length >= first_scan {
        return Ok(true);
    }
    // Other data follow the image, for example a second image in a multi-picture file.
    reader.seek(SeekFrom::Start(first_scan))?;
    let mut after_ff = false;
    loop {
        let piece = reader.fill_buf()?;
        if piece.is_empty() {
            return Ok(false);
        }
        if (after_ff && piece[0] == END[1]) || piece.windows(2).any(|pair| pair == END) {
            return Ok(true);
        }
        after_ff = piece[piece.len() - 1] == END[0];
        let length = piece.len();
        reader.consume(length);
    }
}

fn whole(reader: Adapted, pixels: ColourModel, channels: usize) -> Result<Image, Reason> {
    let colours = if pixels == ColourModel::Gray { ColorSpace::Luma } else { ColorSpace::RGB };
    let sides = usize::from(u16::MAX);
    // Strict: a truncated file is an error, not an image with a gray bottom.
    let options = DecoderOptions::default().set_strict_mode(true).set_max_width(sides).set_max_height(sides);
    let options = options.jpeg_set_out_colorspace(colours);
    let mut decoder = zune_jpeg::JpegDecoder::new_with_options(reader, options);
    let mut image = decoder.decode().map_err(|e| e.to_string())?;
    let (width, height) = decoder.dimensions().ok_or("the JPEG has no size")?;
    drop(decoder);
    pixels.convert_in_place(&mut image, channels);
    Ok(Image { pixels: image, height, width, channels })
}

fn scaled(reader: Adapted, denominator: usize, channels: usize) -> Result<Image, Reason> {
    let mut decoder = jpeg_decoder::Decoder::new(reader);
    decoder.read_info().map_err(|e| e.to_string())?;
    let info = decoder.info().ok_or("the JPEG has no frame header")?;
    let sides = [info.width, info.height].map(|side| side.div_ceil(denominator as u16));
    decoder.scale(sides[0], sides[1]).map_err(|e| e.to_string())?;
    let mut image = decoder.decode().map_err(|e| e.to_string())?;
    let info = decoder.info().ok_or("the JPEG has no frame header")?;
    let pixels = match info.pixel_format {
        PixelFormat::L8 => ColourModel::Gray,
        PixelFormat::RGB24 => ColourModel::Rgb,
        PixelFormat::CMYK32 => ColourModel::Cmyk,
        PixelFormat::L16 => return Err(Reason::Unsupported("a JPEG of 16 bits a sample, expected 8".into())),
    };
    drop(decoder);
    pixels.convert_in_place(&mut image, channels);
    Ok(Image { pixels: image, height: usize::from(info.height), width: usize::from(info.width), channels })
}
