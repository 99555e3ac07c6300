//! The first directory of a TIFF, before the decoder reads it. Source: TIFF 6.0; the BigTIFF design of libtiff.

use std::io::{self, Read, Seek, SeekFrom};

use crate::decode::source::reader::Reader;

use super::adapted::Hidden;
use super::palette::{self, Palette};

/// The reason why a directory is not passed to the decoder.
pub(super) enum Damage {
    Io(io::Error),
    Count { tag: u16, count: u64, most: u64 },
}

impl From<io::Error> for Damage {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The facts that the decoder does not report.
#[derive(Default)]
pub(super) struct Directory {
    /// The bytes that the decoder must not see.
    pub(super) hidden: Hidden,
    /// Whether another directory follows.
    pub(super) more: bool,
    pub(super) colours: Option<Palette>,
    /// Whether the first pixel is in the low bits of a byte (FillOrder 2).
    pub(super) low_bits_first: bool,
}

impl Directory {
    /// Checks the number of values of each tag in the first directory, because the decoder expands the 1 MiB that its limit
    /// allows to values of up to thirty times as many bytes. Reads the palette.
    pub(super) fn read(reader: &mut Reader) -> Result<Self, Damage> {
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
                    directory.hidden.palette = Some(start + i * length as u64 + (first + value_at + low) as u64);
                    1024
                }
                273 | 279 | 324 | 325 => ((1 << 20) / bytes as u64).min(1 << 18), // strips and tiles
                320 if kind == 3 && count <= 3 << 8 => {
                    colour_map = Some((number(value), count));
                    continue;
                }
                266 if bytes < 8 => {
                    directory.low_bits_first = number(&value[..bytes]) == LOW_BITS_FIRST;
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
        let here = start + first as u64 + entries * length as u64;
        let next = if big { number(&take::<8>(reader)?) } else { number(&take::<4>(reader)?) };
        directory.hidden.next = here..here + if big { 8 } else { 4 };
        directory.more = next != 0;
        if let (Some(_), Some((start, count))) = (directory.hidden.palette, colour_map) {
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

/// The lower-order bits of a byte come first, as a fill order.
const LOW_BITS_FIRST: u64 = 2;

pub(super) fn take<const N: usize>(reader: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    reader.read_exact(&mut bytes)?;
    Ok(bytes)
}
