//! TIFFs: their header, and the pictures in them.

mod chunks;
mod directory;

use std::io::{self, Read, Seek};

use ::tiff::decoder::{ChunkType, Decoder, TiffCodingUnit};
use ::tiff::tags::{CompressionMethod, SampleFormat, Tag};
use ::tiff::{ColorType, TiffError};

use crate::Image;

use super::Orientation;
use super::colour::Pixels;
use super::header::{self, Format, Header};
use super::input::Reader;
use super::palette::{Indices, Palette};
use super::plan::Rect;
use super::reason::Reason;
use super::reduce::{self, Boxes};

pub(super) use chunks::{Chunks, Piece};
use directory::{Damage, Directory};

/// The strips or tiles of a TIFF, here both called chunks.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Layout {
    /// `None` for samples or bands that are no picture.
    pixels: Result<Pixels, Reason>,
    /// Rows and columns of a chunk.
    chunk: [usize; 2],
    /// Rows and columns of a chunk that are within the image.
    filled: [usize; 2],
    /// Chunks in the file.
    count: usize,
    pub(super) samples: usize,
    pub(super) bits: usize,
    pub(super) kind: SampleFormat,
    jpeg: bool,
    zstd: bool,
    palette: Option<Palette>,
    /// Where the photometric interpretation is, if that is a palette.
    interpretation: Option<u64>,
}

/// Reads the first directory. Source: TIFF 6.0; the BigTIFF design of libtiff.
pub(super) fn header(reader: &mut Reader) -> Result<Header, Reason> {
    let directory = Directory::read(reader).map_err(|error| match error {
        Damage::Io(e) => reason(e.into()),
        Damage::Count { tag: 273 | 279 | 324 | 325, count, most } => {
            let said = format!("a TIFF of {count} strips or tiles, expected at most {most}: larger ones make fewer");
            Reason::Unsupported(said)
        }
        Damage::Count { tag, count, most } => {
            format!("tag {tag} of the TIFF has {count} values, expected at most {most}").into()
        }
    })?;
    reader.rewind().map_err(|e| e.to_string())?;
    let mut decoder = Decoder::new(Indices::new(reader, directory.interpretation)).map_err(reason)?;
    let (width, height) = decoder.dimensions().map_err(reason)?;
    let layout = Layout::read(&mut decoder, directory)?;
    let orientation = decoder.find_tag_unsigned(Tag::Orientation).map_err(reason)?;
    let orientation = orientation.and_then(Orientation::from_exif).unwrap_or_default();
    let stored = [height as usize, width as usize];
    let [height, width] = orientation.size(stored);
    Ok(Header {
        format: Format::Tiff,
        height,
        width,
        channels: match &layout.pixels {
            Ok(Pixels::Gray | Pixels::GrayAlpha) => 1,
            Ok(Pixels::Rgb | Pixels::Rgba | Pixels::YCbCr) => 3,
            Ok(Pixels::Cmyk | Pixels::CmykAlpha) => 4,
            Err(_) => layout.samples,
        },
        bits: layout.bits as u8,
        alpha: matches!(layout.pixels, Ok(Pixels::GrayAlpha | Pixels::Rgba | Pixels::CmykAlpha)),
        orientation,
        progressive: false,
        frames: if decoder.more_images() { None } else { Some(1) },
        layout: header::Layout::Tiff(layout),
    })
}

fn reason(error: TiffError) -> Reason {
    match error {
        TiffError::IoError(e) if e.kind() == io::ErrorKind::UnexpectedEof => "the TIFF ends too early".into(),
        TiffError::UnsupportedError(e) => Reason::Unsupported(e.to_string()),
        other => other.to_string().into(),
    }
}

impl Layout {
    fn read<R: Read + Seek>(decoder: &mut Decoder<R>, directory: Directory) -> Result<Self, Reason> {
        let colour = decoder.colortype().map_err(reason)?;
        let (columns, rows) = decoder.chunk_dimensions();
        let unit = decoder.image_coding_unit_layout(TiffCodingUnit(0)).map_err(reason)?;
        let (bits, samples) = (usize::from(colour.bit_depth()), usize::from(colour.num_samples()));
        let (width, height) = decoder.dimensions().map_err(reason)?;
        let compression = decoder.find_tag_unsigned(Tag::Compression).map_err(reason)?;
        let tiled = decoder.get_chunk_type() == ChunkType::Tile;
        if tiled && (rows as usize).checked_mul(columns as usize).is_none_or(|pixels| pixels > header::MAX_PIXELS) {
            return Err(format!("tiles of {rows}x{columns} pixels, expected at most 2^40 in all").into());
        }
        let Directory { interpretation, colours } = directory;
        let palette = match (interpretation, colours, bits) {
            (None, ..) => None,
            (Some(_), Some(colours), 1..=8) if samples == 1 && colours.len() == 1 << bits => Some(colours),
            (Some(_), colours, _) => {
                let count = colours.map_or(0, |colours| colours.len());
                return Err(format!(
                    "a TIFF of {samples} samples of {bits} bits and a palette of {count} colours, expected one of 1 to \
                     8 bits and as many colours as that has values"
                )
                .into());
            }
        };
        let filled = [rows.min(height), columns.min(width)].map(|side| side as usize);
        Ok(Self {
            pixels: pixels(colour, unit.sample_format).map(|gray| if palette.is_some() { Pixels::Rgb } else { gray }),
            // The rows of a strip may be given as 2^32 - 1.
            chunk: if tiled { [rows as usize, columns as usize] } else { filled },
            filled,
            count: height.div_ceil(rows) as usize * width.div_ceil(columns) as usize,
            samples,
            bits,
            kind: unit.sample_format,
            jpeg: compression == Some(CompressionMethod::ModernJPEG.to_u16()),
            zstd: compression == Some(CompressionMethod::ZSTD.to_u16()),
            palette,
            interpretation,
        })
    }

    /// Channels that are kept when so many are asked for.
    pub(super) fn kept(&self, asked: usize) -> usize {
        self.pixels.as_ref().map_or(asked, |pixels| pixels.kept(asked))
    }

    /// Bytes of a sample once it is unpacked.
    pub(super) fn sample_bytes(&self) -> usize {
        self.bits.div_ceil(8)
    }

    /// Bytes that reading a chunk after the other takes, without what becomes of them.
    pub(super) fn chunk_bytes(&self) -> u64 {
        let pixels = (self.filled[0] * self.filled[1]) as u64;
        let coded = (self.chunk[0] * self.chunk[1]) as u64;
        let row = (self.chunk[1] * self.samples * self.sample_bytes()) as u64;
        // A JPEG chunk is read whole, then decoded whole, before it is copied.
        let inside = if self.jpeg { coded * self.samples as u64 * 3 + 64 * row } else { 0 };
        let decoded = (pixels * (self.samples * self.bits) as u64).div_ceil(8) + self.filled[0] as u64;
        // The window of a frame, which libzstd keeps.
        let inside = if self.zstd { inside + decoded.min(MOST_WINDOW) } else { inside };
        decoded + inside + 2 * row + (self.count * 80) as u64 + STATE
    }

    /// Bytes that decoding takes at its peak, the pixels that come out among them.
    pub(super) fn bytes(&self, part: &Rect, factor: usize, channels: usize) -> u64 {
        let samples = if self.palette.is_some() { 3 } else { self.samples };
        let rows = 3 * (self.filled[1] * samples.max(channels)) as u64;
        self.chunk_bytes() + rows + reduce::bytes(part.size(), channels, factor, self.filled[0])
    }

    /// Decodes the part that is wanted to 1 or 3 channels.
    pub(super) fn decode(&self, reader: Reader, part: &Rect, factor: usize, channels: usize) -> Result<Image, Reason> {
        let pixels = self.pixels.clone()?;
        let size = part.size();
        let mut boxes = Boxes::new(size, channels, factor);
        let (mut bytes, mut converted) = (vec![], vec![]);
        Chunks::open(reader, self.clone())?.read(part, |piece| match piece {
            Piece::Row { y, x, samples } => {
                let eight = match self.bits {
                    _ if let Some(palette) = &self.palette => {
                        bytes.clear();
                        bytes.extend(samples.iter().flat_map(|index| palette[usize::from(*index)]));
                        &bytes
                    }
                    8 => samples,
                    16 => {
                        bytes.clear();
                        let samples = samples.as_chunks::<2>().0;
                        bytes.extend(samples.iter().map(|sample| (u16::from_ne_bytes(*sample) >> 8) as u8));
                        &bytes
                    }
                    bits => {
                        let scale = 255 / ((1u8 << bits) - 1);
                        bytes.clear();
                        bytes.extend(samples.iter().map(|sample| sample * scale));
                        &bytes
                    }
                };
                converted.resize(eight.len() / pixels.samples() * channels, 0);
                pixels.convert(eight, channels, &mut converted);
                boxes.add(y - part.top, x - part.left, &converted);
            }
            Piece::EndOfRows { y } => boxes.complete(y - part.top),
        })?;
        let [height, width] = size.map(|side| side.div_ceil(factor));
        Ok(Image { pixels: boxes.finish(), height, width, channels })
    }
}

/// What a Zstandard decoder is expected to read (RFC 8878, section 3.1.1.1.2).
const MOST_WINDOW: u64 = 8 << 20;

/// Decoding tables, and the readers within readers.
const STATE: u64 = 256 * 1024;

fn pixels(colour: ColorType, kind: SampleFormat) -> Result<Pixels, Reason> {
    let pixels = match colour {
        ColorType::Gray(1 | 2 | 4 | 8 | 16) => Some(Pixels::Gray),
        ColorType::Multiband { bit_depth: 8 | 16, num_samples: 2 } => Some(Pixels::GrayAlpha),
        ColorType::RGB(8 | 16) => Some(Pixels::Rgb),
        ColorType::RGBA(8 | 16) => Some(Pixels::Rgba),
        ColorType::CMYK(8 | 16) => Some(Pixels::Cmyk),
        ColorType::CMYKA(8 | 16) => Some(Pixels::CmykAlpha),
        ColorType::YCbCr(8) => Some(Pixels::YCbCr),
        _ => None,
    };
    pixels.filter(|_| kind == SampleFormat::Uint).ok_or_else(|| {
        Reason::Unsupported(format!(
            "{colour:?} TIFF of {kind:?} samples, expected gray, RGB or CMYK of at most 16 bits (a Raster reads it)"
        ))
    })
}
