//! PNG: its header, and its rows decoded one after the other.
//!
//! By hand around the `png` crate, which gives rows: a PNG of 100 megapixels is decoded in 1.6 MB (docs/data-loading.md).

use std::io::{Read, Seek};

use ::png::{ColorType, Decoder, Limits, Transformations};

use crate::decode::header::{Format, Header};
use crate::decode::patched::{Patch, Patched, Stop};
use crate::decode::pixels::colour::ColourModel;
use crate::decode::pixels::image::{Image, Rect};
use crate::decode::pixels::reduce::{self, Boxes};
use crate::decode::source::{Reader, Reason};

use super::png_exif::{self, Exif};

/// How the rows of a PNG are stored.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Layout {
    interlaced: bool,
    /// The colour model after palettes are looked up and samples reduced to 8 bits.
    pub(crate) pixels: ColourModel,
    /// Bits of a pixel in the file.
    bits: usize,
}

/// Reads the chunks up to the image data, and those behind it for the orientation. The reader's position is lost. Source: PNG (third
/// edition), section 11.
pub(crate) fn header(reader: &mut Reader) -> Result<(Header, Layout), Reason> {
    let mut start = [0; 8 + 8 + 13 + 4];
    reader.read_exact(&mut start).map_err(|_| CUT)?;
    if start[8..16] != *b"\0\0\0\x0dIHDR" {
        return Err("the PNG does not begin with its header chunk".into());
    }
    let [width, height] =
        [16, 20].map(|at| u32::from_be_bytes([start[at], start[at + 1], start[at + 2], start[at + 3]]));
    let [depth, colour, _, _, interlace] = start[24..29] else { return Err(CUT.into()) };
    if height == 0 || width == 0 || height.max(width) > i32::MAX as u32 {
        return Err(format!("{height}x{width} pixels, expected 1x1 to {}x{}", i32::MAX, i32::MAX).into());
    }
    let samples = match (colour, depth) {
        (0, 1 | 2 | 4 | 8 | 16) | (3, 1 | 2 | 4 | 8) => 1,
        (2, 8 | 16) => 3,
        (4, 8 | 16) => 2,
        (6, 8 | 16) => 4,
        _ => return Err(format!("PNG colour type {colour} of {depth} bits a sample, which PNG does not have").into()),
    };
    let (mut exif, mut transparent, mut frames) = (Exif::default(), false, Some(1));
    loop {
        let mut chunk = [0; 8];
        reader.read_exact(&mut chunk).map_err(|_| CUT)?;
        let length = u32::from_be_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]);
        match &chunk[4..] {
            b"IDAT" => {
                if !exif.is_certain() {
                    let next = reader.stream_position()? + u64::from(length) + 4;
                    // Past the buffer: a chunk's name is read, and not the chunk.
                    exif.add_rest(reader.get_mut(), next);
                }
                break;
            }
            b"IEND" => return Err("the PNG has no image data".into()),
            name if Exif::may_hold(name) => {
                let mut data = vec![0; length.min(png_exif::MOST_BYTES) as usize];
                reader.read_exact(&mut data).map_err(|_| CUT)?;
                exif.add(name, &data);
                let rest = i64::from(length) - data.len() as i64;
                reader.seek_relative(rest + 4)?;
            }
            name => {
                if name == b"acTL" {
                    frames = None;
                }
                transparent |= name == b"tRNS";
                reader.seek_relative(i64::from(length) + 4)?;
            }
        }
    }
    let pixels = match (colour, transparent) {
        (0, false) => ColourModel::Gray,
        (0, true) | (4, _) => ColourModel::GrayAlpha,
        (6, _) | (2 | 3, true) => ColourModel::Rgba,
        _ => ColourModel::Rgb,
    };
    let [height, width] = [height, width].map(|side| side as usize);
    let orientation = exif.orientation();
    let [seen_height, seen_width] = orientation.size([height, width]);
    let header = Header {
        format: Format::Png,
        height: seen_height,
        width: seen_width,
        channels: if matches!(pixels, ColourModel::Gray | ColourModel::GrayAlpha) { 1 } else { 3 },
        bits: depth,
        alpha: matches!(pixels, ColourModel::GrayAlpha | ColourModel::Rgba),
        orientation,
        progressive: interlace == 1,
        frames,
    };
    Ok((header, Layout { interlaced: interlace == 1, pixels, bits: samples * usize::from(depth) }))
}

const CUT: &str = "the PNG ends before its image data";

impl Layout {
    pub(crate) fn kept(&self, asked: usize) -> usize {
        self.pixels.kept(asked)
    }

    /// Whether rows are stored one after the other, so that they can be reduced while they are decoded.
    pub(crate) fn streams(&self) -> bool {
        !self.interlaced
    }

    /// Bytes that reading rows takes, without the result.
    pub(crate) fn reading_bytes(&self, [height, width]: [usize; 2]) -> u64 {
        let row = (width as u64 * self.bits as u64).div_ceil(8) + 1;
        // The decoder shifts its buffer back after 128 KiB or four rows.
        let unfiltering = (2 * (4 * row).max(128 * 1024) + 64 * 1024).min(2 * row * height as u64 + 16 * 1024);
        STATE + unfiltering + width as u64 * 2 * self.pixels.samples() as u64
    }

    /// Bytes that decoding takes at its peak, the decoded pixels included.
    pub(crate) fn bytes(&self, size: [usize; 2], part: &Rect, factor: usize, channels: usize) -> u64 {
        let out = match self.interlaced {
            true => (size[0] * size[1] * self.pixels.samples()) as u64,
            false => reduce::bytes(part.size(), channels, factor, 1) + (part.size()[1] * channels) as u64,
        };
        self.reading_bytes(size) + out
    }

    /// Decodes a part to 1 or 3 channels; the whole image when interlaced.
    pub(crate) fn decode(
        &self,
        reader: Reader,
        width: usize,
        part: &Rect,
        factor: usize,
        channels: usize,
    ) -> Result<Image, Reason> {
        if self.interlaced {
            let mut decoder = self.open(reader, width, Transformations::EXPAND | Transformations::STRIP_16)?;
            let height = decoder.info().height as usize;
            let mut pixels = vec![0; width * height * self.pixels.samples()];
            decoder.next_frame(&mut pixels)?;
            decoder.finish()?;
            self.pixels.convert_in_place(&mut pixels, channels);
            return Ok(Image { pixels, height, width, channels });
        }
        let size = part.size();
        let mut converted = vec![0; size[1] * channels];
        let mut boxes = Boxes::new(size, channels, factor);
        self.rows(reader, width, part, false, |y, row| {
            self.pixels.convert(row, channels, &mut converted);
            boxes.add(y, 0, &converted);
            boxes.complete(y + 1);
        })?;
        let [height, width] = size.map(|side| side.div_ceil(factor));
        Ok(Image { pixels: boxes.finish(), height, width, channels })
    }

    /// Reads the rows of a part that is not interlaced, counted from its top, with samples of 8 bits or, if `deep`,
    /// of 16 in big-endian order when the file has them.
    pub(crate) fn rows(
        &self,
        reader: impl Read,
        width: usize,
        part: &Rect,
        deep: bool,
        mut take: impl FnMut(usize, &[u8]),
    ) -> Result<(), Reason> {
        let expand = Transformations::EXPAND;
        let mut decoder = self.open(reader, width, if deep { expand } else { expand | Transformations::STRIP_16 })?;
        let (_, depth) = decoder.output_color_type();
        let bytes = self.pixels.samples() * depth as usize / 8;
        let mut row = vec![0; width * bytes];
        for y in 0..part.bottom {
            decoder.read_row(&mut row)?.ok_or("the PNG has too few rows")?;
            if let Some(y) = y.checked_sub(part.top) {
                take(y, &row[part.left * bytes..part.right * bytes]);
            }
        }
        if part.bottom == decoder.info().height as usize {
            decoder.finish()?;
        }
        Ok(())
    }

    /// Opens the file, from its first byte on.
    fn open<R: Read>(
        &self,
        reader: R,
        width: usize,
        transformations: Transformations,
    ) -> Result<::png::Reader<Patched<R, Chunks>>, Reason> {
        // The limit holds for an expanded row, which the plan counts, and for the chunks that are not pixels.
        let limits = Limits { bytes: 2 * width * self.pixels.samples() + CHUNKS };
        let mut decoder = Decoder::new_with_limits(Patched::new(reader, Chunks::default()), limits);
        decoder.set_ignore_text_chunk(true);
        decoder.set_ignore_iccp_chunk(true);
        decoder.set_transformations(transformations);
        let decoder = decoder.read_info()?;
        let expected = match self.pixels {
            ColourModel::Gray => ColorType::Grayscale,
            ColourModel::GrayAlpha => ColorType::GrayscaleAlpha,
            ColourModel::Rgb => ColorType::Rgb,
            _ => ColorType::Rgba,
        };
        // The file may have changed since its header was read.
        match (decoder.output_color_type().0, decoder.info().width as usize) {
            found if found == (expected, width) => Ok(decoder),
            (found, found_width) => {
                Err(format!("{found_width} {found:?} pixels a row, expected {width} {expected:?}").into())
            }
        }
    }
}

const CHUNKS: usize = 64 * 1024;

/// Renames chunks of a PNG to unknown ones, which its decoder skips, and whose checksum may be wrong: EXIF, which the
/// decoder would keep, becomes `ekIf`, and the chunks of an animation `acTl`, `fcTl` and `fdAt`. Only the image is decoded
/// that programs without animations show, and the decoder would refuse frames out of order.
#[derive(Debug, Default)]
struct Chunks {
    /// Bytes read of the signature or of the header of a chunk.
    seen: usize,
    header: [u8; 8],
    signed: bool,
    /// Bytes left of the chunk: its data and their checksum.
    left: u64,
}

impl Patch for Chunks {
    fn patch(&mut self, piece: &mut [u8]) -> Result<(), Stop> {
        let mut at = 0;
        while at < piece.len() {
            let here = self.left.min((piece.len() - at) as u64);
            if here > 0 {
                self.left -= here;
                at += here as usize;
                continue;
            }
            self.header[self.seen] = piece[at];
            // The second letter decides, and can still be changed.
            if self.signed && self.seen == 5 && self.header[4..6] == *b"eX" {
                piece[at] = b'k';
            }
            // The last letter tells that all of the name is known.
            if self.signed && self.seen == 7 && matches!(&self.header[4..], b"acTL" | b"fcTL" | b"fdAT") {
                piece[at] = piece[at].to_ascii_lowercase();
            }
            self.seen = (self.seen + 1) % self.header.len();
            at += 1;
            if self.seen == 0 && std::mem::replace(&mut self.signed, true) {
                let length = u32::from_be_bytes([self.header[0], self.header[1], self.header[2], self.header[3]]);
                self.left = u64::from(length) + 4;
            }
        }
        Ok(())
    }
}

/// The inflate state, a piece of the file, and the chunks before the image data.
const STATE: u64 = 128 * 1024;
