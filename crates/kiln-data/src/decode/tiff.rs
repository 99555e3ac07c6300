use std::io::{self, Read, Seek, SeekFrom};

use ::tiff::decoder::{ChunkType, Decoder, Limits, TiffCodingUnit};
use ::tiff::tags::{CompressionMethod, PlanarConfiguration, SampleFormat, Tag};
use ::tiff::{ColorType, TiffError};

use crate::Image;

use super::colour::Pixels;
use super::header::{self, Format, Header};
use super::input::Reader;
use super::palette::{self, Indices, Palette};
use super::plan::Rect;
use super::reason::Reason;
use super::reduce::{self, Boxes};
use super::{Orientation, jpeg};

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

enum Damage {
    Io(io::Error),
    Count { tag: u16, count: u64, most: u64 },
}

impl From<io::Error> for Damage {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// What the decoder is not asked for.
#[derive(Default)]
struct Directory {
    /// Where the low byte of the photometric interpretation is, if that is a palette.
    interpretation: Option<u64>,
    colours: Option<Palette>,
}

impl Directory {
    /// Checks how many values the tags of the first directory say to have: the decoder reads what its limit of 1 MiB
    /// lets through into values that take up to thirty times as much. Reads the palette.
    fn read(reader: &mut Reader) -> Result<Self, Damage> {
        let [mark, _, version, low] = take(reader)?;
        let little = mark == b'I';
        let big = version == 43 || low == 43;
        let number = |bytes: &[u8]| {
            let add = |sum, byte: &u8| sum << 8 | u64::from(*byte);
            if little { bytes.iter().rev().fold(0, add) } else { bytes.iter().fold(0, add) }
        };
        if big {
            take::<4>(reader)?;
        }
        let start = if big { number(&take::<8>(reader)?) } else { number(&take::<4>(reader)?) };
        reader.seek(SeekFrom::Start(start))?;
        let entries = if big { number(&take::<8>(reader)?) } else { number(&take::<2>(reader)?) };
        let [first, length, value_at] = if big { [8, 20, 12] } else { [2, 12, 8] };
        let (mut directory, mut colour_map) = (Self::default(), None);
        for i in 0..entries {
            let mut entry = [0; 20];
            reader.read_exact(&mut entry[..length])?;
            let (tag, kind) = (number(&entry[..2]), number(&entry[2..4]));
            let (count, value) = (number(&entry[4..value_at]), &entry[value_at..length]);
            let bytes = match kind {
                1 => 1,
                3 => 2,
                4 => 4,
                _ => 8,
            };
            let most = match tag {
                262 if bytes < 8 && number(&value[..bytes]) == PALETTE => {
                    let low = if little { 0 } else { bytes - 1 };
                    directory.interpretation = Some(start + i * length as u64 + (first + value_at + low) as u64);
                    1024
                }
                273 | 279 | 324 | 325 => ((1 << 20) / bytes as u64).min(1 << 18), // strips and tiles
                320 if kind == 3 && count <= 3 << 8 => {
                    colour_map = Some((number(value), count));
                    continue;
                }
                347 => 1 << 16, // tables of a JPEG
                256..=259 | 262 | 274 | 277 | 278 | 284 | 317 | 322 | 323 | 338 | 339 | 530 => 1024,
                _ => continue, // is not read
            };
            if count > most {
                return Err(Damage::Count { tag: tag as u16, count, most });
            }
        }
        if let (Some(_), Some((start, count))) = (directory.interpretation, colour_map) {
            reader.seek(SeekFrom::Start(start))?;
            let mut map = vec![];
            for _ in 0..count {
                map.push(number(&take::<2>(reader)?) as u16);
            }
            directory.colours = Some(palette::palette(&map));
        }
        Ok(directory)
    }
}

/// RGBPalette, as a photometric interpretation.
const PALETTE: u64 = 3;

fn take<const N: usize>(reader: &mut Reader) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    reader.read_exact(&mut bytes)?;
    Ok(bytes)
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

/// Reads the chunks that touch a part of a TIFF, from the top down.
#[derive(Debug)]
pub(super) struct Chunks {
    decoder: Decoder<Indices<Reader>>,
    layout: Layout,
    size: [usize; 2],
    planar: bool,
    /// Where each chunk lies and how long it is; of JPEG and Zstandard alone.
    places: Option<[Vec<u64>; 2]>,
}

/// What [`Chunks::read`] hands over.
pub(super) enum Piece<'a> {
    /// Samples of row `y` from column `x`, those of a pixel side by side, in the machine's byte order, of fewer than
    /// 8 bits as bytes.
    Row { y: usize, x: usize, samples: &'a [u8] },
    /// All rows before `y` are over.
    EndOfRows { y: usize },
}

impl Chunks {
    pub(super) fn open(reader: Reader, layout: Layout) -> Result<Self, Reason> {
        let mut limits = Limits::default();
        // Of the chunks only JPEG is read whole. A JPEG that is larger than its pixels is none.
        limits.intermediate_buffer_size = match layout.jpeg {
            true => layout.chunk[0] * layout.chunk[1] * layout.samples + (1 << 16),
            false => usize::MAX,
        };
        let reader = Indices::new(reader, layout.interpretation);
        let mut decoder = Decoder::new(reader).map_err(reason)?.with_limits(limits);
        let (width, height) = decoder.dimensions().map_err(reason)?;
        let planar = decoder.find_tag_unsigned::<u16>(Tag::PlanarConfiguration).map_err(reason)?;
        let places = match (layout.jpeg || layout.zstd, decoder.get_chunk_type()) {
            (false, _) => None,
            (true, ChunkType::Strip) => Some([Tag::StripOffsets, Tag::StripByteCounts]),
            (true, ChunkType::Tile) => Some([Tag::TileOffsets, Tag::TileByteCounts]),
        };
        let places = match places {
            Some([offsets, lengths]) => {
                let offsets = decoder.get_tag_u64_vec(offsets).map_err(reason)?;
                Some([offsets, decoder.get_tag_u64_vec(lengths).map_err(reason)?])
            }
            None => None,
        };
        let planar = planar == Some(PlanarConfiguration::Planar.to_u16());
        Ok(Self { decoder, layout, size: [height as usize, width as usize], planar, places })
    }

    pub(super) fn read(&mut self, part: &Rect, mut take: impl FnMut(Piece)) -> Result<(), Reason> {
        let [rows, columns] = self.layout.chunk;
        let across = self.size[1].div_ceil(columns);
        let (samples, bits) = (self.layout.samples, self.layout.bits);
        let sample_bytes = self.layout.sample_bytes();
        let (mut buffer, mut row) = (vec![], vec![]);
        for down in part.top / rows..part.bottom.div_ceil(rows) {
            for right in part.left / columns..part.right.div_ceil(columns) {
                let unit = TiffCodingUnit((down * across + right) as u32);
                let layout = self.decoder.image_coding_unit_layout(unit).map_err(reason)?;
                self.check_coded(unit.0 as usize, layout.planes, layout.complete_len as u64)?;
                buffer.resize(layout.complete_len, 0);
                self.decoder.read_coding_unit_bytes(unit, &mut buffer).map_err(reason)?;
                let stride = layout.row_stride.map_or(0, std::num::NonZero::get);
                let plane = layout.plane_stride.map_or(0, std::num::NonZero::get);
                let [top, left] = [down * rows, right * columns];
                let wanted = left.max(part.left)..(left + columns).min(part.right);
                for y in top.max(part.top)..(top + rows).min(part.bottom) {
                    let stored = &buffer[(y - top) * stride..];
                    let columns = wanted.start - left..wanted.end - left;
                    let samples = match (bits < 8, self.planar && samples > 1) {
                        (false, false) => {
                            &stored[columns.start * samples * sample_bytes..columns.end * samples * sample_bytes]
                        }
                        (false, true) => {
                            row.clear();
                            for x in columns {
                                for sample in 0..samples {
                                    let at = sample * plane + x * sample_bytes;
                                    row.extend_from_slice(&stored[at..at + sample_bytes]);
                                }
                            }
                            &row
                        }
                        (true, false) => {
                            row.clear();
                            row.extend(
                                (columns.start * samples..columns.end * samples).map(|at| unpack(stored, at, bits)),
                            );
                            &row
                        }
                        (true, true) => {
                            row.clear();
                            row.extend(columns.flat_map(|x| {
                                (0..samples).map(move |sample| unpack(&stored[sample * plane..], x, bits))
                            }));
                            &row
                        }
                    };
                    take(Piece::Row { y, x: wanted.start, samples });
                }
            }
            take(Piece::EndOfRows { y: ((down + 1) * rows).min(part.bottom) });
        }
        Ok(())
    }

    /// The TIFF decoder takes a JPEG at its word, however large it says to be, and one that is cut short for whole.
    /// Zstandard may ask for a window of 128 MiB.
    fn check_coded(&mut self, unit: usize, planes: usize, bytes: u64) -> Result<(), Reason> {
        let Some([offsets, lengths]) = &self.places else { return Ok(()) };
        let per_plane = offsets.len() / planes.max(1);
        let io = |e: io::Error| e.to_string();
        for chunk in (0..planes).map(|plane| unit + plane * per_plane) {
            let (Some(offset), Some(length)) = (offsets.get(chunk), lengths.get(chunk)) else {
                return Err(format!("chunk {chunk} of the TIFF is missing").into());
            };
            let reader = self.decoder.inner().file();
            let end = reader.seek(SeekFrom::End(0)).map_err(io)?;
            if offset.checked_add(*length).is_none_or(|last| last > end) {
                return Err(format!("chunk {chunk} of the TIFF lies beyond the end of the file").into());
            }
            reader.seek(SeekFrom::Start(*offset)).map_err(io)?;
            if self.layout.zstd {
                let window = zstd_window(reader).map_err(io)?;
                if window > MOST_WINDOW.max(bytes) {
                    return Err(Reason::Unsupported(format!(
                        "Zstandard with a window of {window} bytes in chunk {chunk} of the TIFF, expected at most 8 MiB"
                    )));
                }
                continue;
            }
            let inner = jpeg::header(reader)?;
            let [rows, columns] = self.layout.chunk;
            // Strips and tiles at the border may be padded to whole blocks.
            if inner.height > rows.next_multiple_of(16) || inner.width > columns.next_multiple_of(16) {
                let said = format!("{}x{}", inner.height, inner.width);
                return Err(
                    format!("a {said} JPEG in chunk {chunk} of the TIFF, expected at most {rows}x{columns}").into()
                );
            }
        }
        Ok(())
    }
}

/// The window of a Zstandard frame, 0 when it begins with none. Source: RFC 8878, section 3.1.1.
fn zstd_window(reader: &mut Reader) -> io::Result<u64> {
    let [magic @ .., descriptor] = take::<5>(reader)?;
    if magic != [0x28, 0xb5, 0x2f, 0xfd] {
        return Ok(0);
    }
    if descriptor & 0x20 == 0 {
        let [window] = take(reader)?;
        let base = 1u64 << (10 + (window >> 3));
        return Ok(base + base / 8 * u64::from(window & 7));
    }
    // A single segment: the window is the content, whose size follows the number of a dictionary.
    let mut bytes = [0; 12];
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let content = 1 << (descriptor >> 6);
    reader.read_exact(&mut bytes[..dictionary + content])?;
    let size = bytes[dictionary..].iter().take(content).rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    Ok(if content == 2 { size + 256 } else { size })
}

/// Sample `index` of a row of `bits`-wide samples, the first in the high bits.
fn unpack(row: &[u8], index: usize, bits: usize) -> u8 {
    let at = index * bits;
    (row[at / 8] >> (8 - bits - at % 8)) & ((1u16 << bits) - 1) as u8
}
