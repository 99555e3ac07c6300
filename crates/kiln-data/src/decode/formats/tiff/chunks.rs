//! Reads the pixels of a TIFF, one strip or tile after the other.
//!
//! By hand around the `tiff` crate, which decodes one chunk: a TIFF of 100 megapixels takes 1.6 MB (docs/data-loading.md).

use std::io::{Read, Seek, SeekFrom};

use ::tiff::TiffError;
use ::tiff::decoder::{ChunkType, Decoder, Limits};
use ::tiff::tags::Tag;

use crate::decode::formats::jpeg;
use crate::decode::pixels::image::Rect;
use crate::decode::source::{Reader, Reason};

use super::directory::{Adapted, take};
use super::layout::{Layout, MOST_WINDOW};

/// Reads the chunks that touch a part of a TIFF, from the top down.
#[derive(Debug)]
pub(crate) struct Chunks {
    decoder: Decoder<Adapted<Reader>>,
    layout: Layout,
    size: [usize; 2],
    /// The position and length of each chunk; for JPEG and Zstandard only.
    places: Option<[Vec<u64>; 2]>,
}

/// A piece of the pixels, from [`Chunks::read`].
pub(crate) enum Piece<'a> {
    /// Samples of row `y` from column `x`, those of a pixel side by side, in the machine's byte order, of fewer than
    /// 8 bits as bytes.
    Row { y: usize, x: usize, samples: &'a [u8] },
    /// All rows before `y` are complete.
    EndOfRows { y: usize },
}

impl Chunks {
    pub(crate) fn open(reader: Reader, layout: Layout) -> Result<Self, Reason> {
        let mut limits = Limits::default();
        // Only JPEG chunks are read whole. A JPEG that is larger than its pixels is not valid.
        limits.intermediate_buffer_size = match layout.jpeg {
            true => layout.chunk[0] * layout.chunk[1] * layout.samples + (1 << 16),
            false => usize::MAX,
        };
        let reader = Adapted::new(reader, layout.hidden.clone());
        let mut decoder = Decoder::new(reader)?.with_limits(limits);
        let (width, height) = decoder.dimensions()?;
        let places = match (layout.jpeg || layout.zstd, decoder.get_chunk_type()) {
            (false, _) => None,
            (true, ChunkType::Strip) => Some([Tag::StripOffsets, Tag::StripByteCounts]),
            (true, ChunkType::Tile) => Some([Tag::TileOffsets, Tag::TileByteCounts]),
        };
        let places = match places {
            Some([offsets, lengths]) => {
                let offsets = decoder.get_tag_u64_vec(offsets)?;
                Some([offsets, decoder.get_tag_u64_vec(lengths)?])
            }
            None => None,
        };
        if layout.reversed {
            decoder.inner().reverse_bits();
        }
        Ok(Self { decoder, layout, size: [height as usize, width as usize], places })
    }

    pub(crate) fn read(&mut self, part: &Rect, mut take: impl FnMut(Piece)) -> Result<(), Reason> {
        let [rows, columns] = self.layout.chunk;
        let across = self.size[1].div_ceil(columns);
        let (samples, bits) = (self.layout.samples, self.layout.bits);
        let sample_bytes = self.layout.sample_bytes();
        let (mut buffer, mut row) = (vec![], vec![]);
        for down in part.top / rows..part.bottom.div_ceil(rows) {
            for right in part.left / columns..part.right.div_ceil(columns) {
                let [stride, plane] = self.planes(down * across + right, &mut buffer)?;
                let [top, left] = [down * rows, right * columns];
                let wanted = left.max(part.left)..(left + columns).min(part.right);
                for y in top.max(part.top)..(top + rows).min(part.bottom) {
                    let stored = &buffer[(y - top) * stride..];
                    let columns = wanted.start - left..wanted.end - left;
                    let samples = match bits < 8 || self.layout.planar {
                        false => &stored[columns.start * samples * sample_bytes..columns.end * samples * sample_bytes],
                        true => {
                            row.clear();
                            for (x, sample) in columns.flat_map(|x| (0..samples).map(move |sample| (x, sample))) {
                                let [plane, at] = match self.layout.planar {
                                    true => [sample * plane, x],
                                    false => [0, x * samples + sample],
                                };
                                match bits < 8 {
                                    true => row.push(unpack(&stored[plane..], at, bits)),
                                    false => {
                                        row.extend_from_slice(&stored[plane + at * sample_bytes..][..sample_bytes])
                                    }
                                }
                            }
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

    /// Reads the chunk at an index, of each plane, into `buffer`. Returns the bytes from one row to the next, and from one
    /// plane to the next.
    ///
    /// The planes are read one by one: the decoder mistakes the size of the last row of tiles in all but the first.
    fn planes(&mut self, index: usize, buffer: &mut Vec<u8>) -> Result<[usize; 2], Reason> {
        let planes = if self.layout.planar { self.layout.samples } else { 1 };
        let (mut stride, mut plane_bytes) = (0, 0);
        for plane in 0..planes {
            let chunk = index + plane * self.layout.count;
            let layout = self.decoder.image_chunk_buffer_layout(chunk as u32)?;
            self.check_coded(chunk, layout.len as u64)?;
            stride = layout.row_stride.map_or(0, std::num::NonZero::get);
            if plane == 0 {
                plane_bytes = layout.len;
                buffer.clear();
            }
            // The next plane overwrites the rows of padding.
            let start = plane * plane_bytes;
            buffer.resize(start + layout.len.max(plane_bytes), 0);
            self.decoder.read_chunk_bytes(chunk as u32, &mut buffer[start..])?;
        }
        Ok([stride, plane_bytes])
    }

    /// Checks a coded chunk, because the TIFF decoder trusts the size in a JPEG's header, accepts a truncated JPEG, and
    /// allows a Zstandard window of 128 MiB.
    fn check_coded(&mut self, chunk: usize, bytes: u64) -> Result<(), Reason> {
        let Some([offsets, lengths]) = &self.places else { return Ok(()) };
        let (Some(offset), Some(length)) = (offsets.get(chunk), lengths.get(chunk)) else {
            return Err(format!("chunk {chunk} of the TIFF is missing").into());
        };
        let reader = self.decoder.inner();
        let end = reader.seek(SeekFrom::End(0))?;
        if offset.checked_add(*length).is_none_or(|last| last > end) {
            return Err(format!("chunk {chunk} of the TIFF lies beyond the end of the file").into());
        }
        reader.seek(SeekFrom::Start(*offset))?;
        if self.layout.zstd {
            let window = zstd_window(reader)?;
            if window > MOST_WINDOW.max(bytes) {
                return Err(Reason::Unsupported(format!(
                    "Zstandard with a window of {window} bytes in chunk {chunk} of the TIFF, expected at most 8 MiB"
                )));
            }
            return Ok(());
        }
        let (inner, _) = jpeg::header(reader.file())?;
        let [rows, columns] = self.layout.chunk;
        // Strips and tiles at the border may be padded to whole blocks.
        if inner.height > rows.next_multiple_of(16) || inner.width > columns.next_multiple_of(16) {
            let said = format!("{}x{}", inner.height, inner.width);
            return Err(format!("a {said} JPEG in chunk {chunk} of the TIFF, expected at most {rows}x{columns}").into());
        }
        Ok(())
    }
}

/// The window of a Zstandard frame; 0 for other data. Source: RFC 8878, section 3.1.1.
fn zstd_window(reader: &mut impl Read) -> Result<u64, TiffError> {
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
