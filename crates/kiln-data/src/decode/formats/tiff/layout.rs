//! The header of a TIFF: how its pixels are stored, and the bytes that decoding takes.

use std::io::{Read, Seek};

use ::tiff::ColorType;
use ::tiff::decoder::{ChunkType, Decoder, TiffCodingUnit};
use ::tiff::tags::{CompressionMethod, PlanarConfiguration, SampleFormat, Tag};

use crate::decode::header::{Format, Header, MAX_PIXELS};
use crate::decode::pixels::colour::ColourModel;
use crate::decode::pixels::image::Rect;
use crate::decode::pixels::orientation::Orientation;
use crate::decode::pixels::reduce;
use crate::decode::source::{Reader, Reason};

use super::directory::{Adapted, Directory, Hidden, Palette};

/// Reads the first directory. Source: TIFF 6.0; the BigTIFF design of libtiff.
pub(crate) fn header(reader: &mut Reader) -> Result<(Header, Layout), Reason> {
    let directory = Directory::read(reader)?;
    reader.rewind()?;
    let mut decoder = Decoder::new(Adapted::new(reader, directory.hidden.clone()))?;
    let (width, height) = decoder.dimensions()?;
    let frames = if directory.more { None } else { Some(1) };
    let layout = Layout::read(&mut decoder, directory)?;
    let orientation = decoder.find_tag_unsigned(Tag::Orientation)?;
    let orientation = orientation.and_then(Orientation::from_exif).unwrap_or_default();
    let stored = [height as usize, width as usize];
    let [height, width] = orientation.size(stored);
    let header = Header {
        format: Format::Tiff,
        height,
        width,
        channels: match &layout.pixels {
            Ok(ColourModel::Gray | ColourModel::GrayAlpha) => 1,
            Ok(ColourModel::Rgb | ColourModel::Rgba | ColourModel::YCbCr) => 3,
            Ok(ColourModel::Cmyk | ColourModel::CmykAlpha) => 4,
            Err(_) => layout.samples,
        },
        bits: layout.bits as u8,
        alpha: matches!(layout.pixels, Ok(ColourModel::GrayAlpha | ColourModel::Rgba | ColourModel::CmykAlpha)),
        orientation,
        progressive: false,
        frames,
    };
    Ok((header, layout))
}

/// The strips or tiles of a TIFF, here both called chunks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Layout {
    /// The reason why not, for samples or bands that are no picture.
    pub(super) pixels: Result<ColourModel, Reason>,
    /// Rows and columns of a chunk.
    pub(super) chunk: [usize; 2],
    /// Rows and columns of a chunk that are within the image.
    pub(super) filled: [usize; 2],
    /// Chunks in the file.
    pub(super) count: usize,
    pub(crate) samples: usize,
    pub(crate) bits: usize,
    pub(crate) kind: SampleFormat,
    pub(super) jpeg: bool,
    pub(super) zstd: bool,
    /// Whether each sample is in a chunk of its own.
    pub(super) planar: bool,
    pub(super) tiled: bool,
    /// Whether the bits of each byte are stored in reverse order.
    pub(super) reversed: bool,
    /// Whether colours were multiplied by alpha.
    pub(super) premultiplied: bool,
    pub(super) palette: Option<Palette>,
    /// The bytes of the file that the decoder must not see.
    pub(super) hidden: Hidden,
}

impl Layout {
    pub(super) fn read<R: Read + Seek>(decoder: &mut Decoder<R>, directory: Directory) -> Result<Self, Reason> {
        let colour = decoder.colortype()?;
        let (columns, rows) = decoder.chunk_dimensions();
        let unit = decoder.image_coding_unit_layout(TiffCodingUnit(0))?;
        let (bits, samples) = (usize::from(colour.bit_depth()), usize::from(colour.num_samples()));
        let (width, height) = decoder.dimensions()?;
        let compression = decoder.find_tag_unsigned(Tag::Compression)?;
        let tiled = decoder.get_chunk_type() == ChunkType::Tile;
        if tiled && (rows as usize).checked_mul(columns as usize).is_none_or(|pixels| pixels > MAX_PIXELS) {
            return Err(format!("tiles of {rows}x{columns} pixels, expected at most 2^40 in all").into());
        }
        let planar = decoder.find_tag_unsigned::<u16>(Tag::PlanarConfiguration)?;
        let extra = decoder.find_tag_unsigned_vec::<u16>(Tag::ExtraSamples)?;
        let jpeg = compression == Some(CompressionMethod::ModernJPEG.to_u16());
        let Directory { hidden, colours, low_bits_first, .. } = directory;
        let palette = match (hidden.palette, colours, bits) {
            (None, ..) => None,
            // Samples behind the index are not colour.
            (Some(_), Some(colours), 1..=8) if colours.len() == 1 << bits => Some(colours),
            (Some(_), colours, _) => {
                let count = colours.map_or(0, |colours| colours.len());
                return Err(format!(
                    "a TIFF of {samples} samples of {bits} bits and a palette of {count} colours, expected indices of \
                     1 to 8 bits and as many colours as these have values"
                )
                .into());
            }
        };
        let filled = [rows.min(height), columns.min(width)].map(|side| side as usize);
        Ok(Self {
            pixels: match palette {
                Some(_) => Ok(ColourModel::Rgb),
                None => pixels(colour, unit.sample_format),
            },
            // The header may give 2^32 - 1 rows for a strip.
            chunk: if tiled { [rows as usize, columns as usize] } else { filled },
            filled,
            count: height.div_ceil(rows) as usize * width.div_ceil(columns) as usize,
            samples,
            bits,
            kind: unit.sample_format,
            jpeg,
            zstd: compression == Some(CompressionMethod::ZSTD.to_u16()),
            planar: samples > 1 && planar == Some(PlanarConfiguration::Planar.to_u16()),
            tiled,
            // The order of bits in a JPEG is its own; libtiff reverses those of all others.
            reversed: low_bits_first && !jpeg,
            premultiplied: extra.is_some_and(|extra| extra.first() == Some(&ASSOCIATED_ALPHA)),
            palette,
            hidden,
        })
    }

    /// Channels that are kept when `asked` are wanted.
    pub(crate) fn kept(&self, asked: usize) -> usize {
        self.pixels.as_ref().map_or(asked, |pixels| pixels.kept(asked))
    }

    /// Bytes of an unpacked sample.
    pub(crate) fn sample_bytes(&self) -> usize {
        self.bits.div_ceil(8)
    }

    /// Bytes that reading the chunks one after the other takes, without the result.
    pub(crate) fn chunk_bytes(&self) -> u64 {
        // The decoder gives the last row of tiles in planes after the first with its padding.
        let rows = if self.planar && self.tiled { self.chunk[0] } else { self.filled[0] };
        let pixels = (rows * self.filled[1]) as u64;
        let coded = (self.chunk[0] * self.chunk[1]) as u64;
        let row = (self.chunk[1] * self.samples * self.sample_bytes()) as u64;
        // A JPEG chunk is read whole and decoded whole before it is copied.
        let inside = if self.jpeg { coded * self.samples as u64 * 3 + 64 * row } else { 0 };
        let decoded = (pixels * (self.samples * self.bits) as u64).div_ceil(8) + rows as u64;
        // libzstd keeps the window of a frame.
        let inside = if self.zstd { inside + decoded.min(MOST_WINDOW) } else { inside };
        decoded + inside + 2 * row + (self.count * 80) as u64 + STATE
    }

    /// Bytes that decoding takes at its peak, the decoded pixels included.
    pub(crate) fn bytes(&self, part: &Rect, factor: usize, channels: usize) -> u64 {
        let samples = if self.palette.is_some() { 3 } else { self.samples };
        let rows = 4 * (self.filled[1] * samples.max(channels)) as u64;
        self.chunk_bytes() + rows + reduce::bytes(part.size(), channels, factor, self.filled[0])
    }
}

/// The window that every Zstandard decoder should support (RFC 8878, section 3.1.1.1.2).
pub(super) const MOST_WINDOW: u64 = 8 << 20;

/// Associated alpha, as an extra sample.
const ASSOCIATED_ALPHA: u16 = 1;

/// Decoding tables and nested readers.
const STATE: u64 = 256 * 1024;

fn pixels(colour: ColorType, kind: SampleFormat) -> Result<ColourModel, Reason> {
    let pixels = match colour {
        ColorType::Gray(1 | 2 | 4 | 8 | 16) => Some(ColourModel::Gray),
        ColorType::Multiband { bit_depth: 8 | 16, num_samples: 2 } => Some(ColourModel::GrayAlpha),
        ColorType::RGB(8 | 16) => Some(ColourModel::Rgb),
        ColorType::RGBA(8 | 16) => Some(ColourModel::Rgba),
        ColorType::CMYK(8 | 16) => Some(ColourModel::Cmyk),
        ColorType::CMYKA(8 | 16) => Some(ColourModel::CmykAlpha),
        ColorType::YCbCr(8) => Some(ColourModel::YCbCr),
        _ => None,
    };
    pixels.filter(|_| kind == SampleFormat::Uint).ok_or_else(|| {
        Reason::Unsupported(format!(
            "{colour:?} TIFF of {kind:?} samples, expected gray, RGB or CMYK of at most 16 bits (a Raster reads it)"
        ))
    })
}
