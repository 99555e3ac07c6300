//! The first directory of a TIFF before the decoder reads it, and what is hidden from the decoder. Source: TIFF 6.0; the
//! BigTIFF design of libtiff.
//!
//! By hand, since the `tiff` crate expands the 1 MiB that its limit allows to up to thirty times as many bytes.

use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;

use ::tiff::TiffError;

use crate::decode::source::{Reader, Reason};

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
    pub(super) fn read(reader: &mut Reader) -> Result<Self, Reason> {
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
            reader.read_exact(&mut entry[..length]).map_err(TiffError::from)?;
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
                return Err(match tag {
                    273 | 279 | 324 | 325 => Reason::Unsupported(format!(
                        "a TIFF of {count} strips or tiles, expected at most {most}: larger ones make fewer"
                    )),
                    _ => format!("tag {tag} of the TIFF has {count} values, expected at most {most}").into(),
                });
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
            directory.colours = Some(palette(&map));
        }
        Ok(directory)
    }
}

/// RGBPalette, as a photometric interpretation.
const PALETTE: u64 = 3;

/// The lower-order bits of a byte come first, as a fill order.
const LOW_BITS_FIRST: u64 = 2;

pub(super) fn take<const N: usize>(reader: &mut impl Read) -> Result<[u8; N], TiffError> {
    let mut bytes = [0; N];
    reader.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Colours of the indices of a TIFF, from its tag ColorMap (TIFF 6.0, section 5).
pub(super) type Palette = Vec<[u8; 3]>;

/// The high bytes of the reds, greens and blues, as in Pillow.
fn palette(map: &[u16]) -> Palette {
    let colours = map.len() / 3;
    let high = |value: u16| (value >> 8) as u8;
    (0..colours).map(|i| [map[i], map[colours + i], map[2 * colours + i]].map(high)).collect()
}

/// A TIFF whose bytes are changed while they are read. Its photometric interpretation, if that is a palette, is read as
/// gray: the decoder then returns the indices. The first directory is read as the last, because the decoder checks all
/// others too, which are not needed. The bits of each byte are reversed after [`reverse_bits`](Self::reverse_bits).
#[derive(Debug)]
pub(super) struct Adapted<R> {
    file: R,
    at: u64,
    hidden: Hidden,
    reversed: bool,
}

/// The bytes of a file that [`Adapted`] changes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Hidden {
    /// The low byte of the photometric interpretation, if that is a palette.
    pub(super) palette: Option<u64>,
    /// The position of the next directory.
    pub(super) next: Range<u64>,
}

/// BlackIsZero.
const GRAY: u8 = 1;

impl<R> Adapted<R> {
    /// `file` is at its first byte.
    pub(super) fn new(file: R, hidden: Hidden) -> Self {
        Self { file, at: 0, hidden, reversed: false }
    }

    pub(super) fn file(&mut self) -> &mut R {
        &mut self.file
    }

    /// Reverses the bits of each byte from here on: the coded pixels of a TIFF whose FillOrder is 2, after its directory
    /// was read, which has the usual order.
    pub(super) fn reverse_bits(&mut self) {
        self.reversed = true;
    }
}

impl<R: Read> Read for Adapted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.file.read(buffer)?;
        if self.reversed {
            buffer[..length].iter_mut().for_each(|byte| *byte = byte.reverse_bits());
        } else {
            let Hidden { palette, next } = &self.hidden;
            let (from, to) = (next.start.max(self.at), next.end.min(self.at + length as u64));
            if from < to {
                buffer[(from - self.at) as usize..(to - self.at) as usize].fill(0);
            }
            let here = palette.and_then(|byte| byte.checked_sub(self.at)).filter(|here| *here < length as u64);
            if let Some(here) = here {
                buffer[here as usize] = GRAY;
            }
        }
        self.at += length as u64;
        Ok(length)
    }
}

impl<R: Seek> Seek for Adapted<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.at = self.file.seek(to)?;
        Ok(self.at)
    }
}
