//! The coding of a file's pixels: one variant for each format, and the calls that every format answers.

use std::io::{Read, Seek};

use super::formats::{jpeg, other, png, tiff};
use super::header::{Format, Header, MAX_PIXELS};
use super::options::DecodePath;
use super::pixels::image::{Image, Rect};
use super::source::{Reader, Reason, guarded};

/// The facts of each format that planning and decoding need.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Codec {
    Jpeg(jpeg::Layout),
    Png(png::Layout),
    Tiff(tiff::Layout),
    Other(other::Layout),
}

impl Codec {
    /// Reads the header and nothing else.
    pub(super) fn open(reader: &mut Reader) -> Result<(Header, Self), Reason> {
        let mut start = [0; 16];
        let length = fill(reader, &mut start)?;
        reader.rewind()?;
        let (header, codec) = guarded(|| match format(&start[..length]) {
            Some(Format::Jpeg) => jpeg::header(reader).map(|(header, layout)| (header, Self::Jpeg(layout))),
            Some(Format::Png) => png::header(reader).map(|(header, layout)| (header, Self::Png(layout))),
            Some(Format::Tiff) => tiff::header(reader).map(|(header, layout)| (header, Self::Tiff(layout))),
            Some(other) => other::header(reader, other).map(|(header, layout)| (header, Self::Other(layout))),
            None if length == 0 => Err(Reason::from("the file is empty")),
            None => Err("expected JPEG, PNG, TIFF, GIF, WebP, BMP or PNM by its first bytes".into()),
        })?;
        match header.height.checked_mul(header.width) {
            Some(pixels) if pixels <= MAX_PIXELS => Ok((header, codec)),
            _ => Err(Reason::Unsupported(format!(
                "{}x{} pixels, expected at most 2^40 in all",
                header.height, header.width
            ))),
        }
    }

    /// Channels that decoding keeps when `asked` are wanted: gray becomes RGB at the very end.
    pub(super) fn kept(&self, asked: usize) -> usize {
        match self {
            Self::Jpeg(layout) => layout.kept(asked),
            Self::Png(layout) => layout.kept(asked),
            Self::Tiff(layout) => layout.kept(asked),
            Self::Other(layout) => layout.kept(asked),
        }
    }

    /// Bytes that decoding `part` of an image of `size` takes at its peak, the decoded pixels included.
    pub(super) fn bytes(&self, size: [usize; 2], path: DecodePath, part: &Rect, kept: usize, file_bytes: u64) -> u64 {
        match self {
            Self::Jpeg(layout) => layout.bytes(size, path, file_bytes),
            Self::Png(layout) => layout.bytes(size, part, path.factor(), kept),
            Self::Tiff(layout) => layout.bytes(part, path.factor(), kept),
            Self::Other(layout) => layout.bytes(size),
        }
    }

    /// Decodes `part` of an image of `size` to `kept` channels. Returns also the damage that was read over.
    pub(super) fn decode(
        &self,
        reader: Reader,
        size: [usize; 2],
        path: DecodePath,
        part: &Rect,
        kept: usize,
    ) -> Result<(Image, Option<&'static str>), Reason> {
        guarded(|| match self {
            Self::Jpeg(layout) => jpeg::decode(layout, reader, path, kept),
            Self::Png(layout) => Ok((layout.decode(reader, size[1], part, path.factor(), kept)?, None)),
            Self::Tiff(layout) => Ok((tiff::decode(layout, reader, part, path.factor(), kept)?, None)),
            Self::Other(layout) => Ok((layout.decode(reader, size, kept)?, None)),
        })
    }
}

/// Reads until the buffer is full or the input ends.
fn fill(reader: &mut Reader, buffer: &mut [u8]) -> Result<usize, Reason> {
    let mut length = 0;
    while length < buffer.len() {
        match reader.read(&mut buffer[length..])? {
            0 => break,
            read => length += read,
        }
    }
    Ok(length)
}

/// The format by the first bytes of a file.
fn format(start: &[u8]) -> Option<Format> {
    Some(match start {
        [0xff, 0xd8, 0xff, ..] => Format::Jpeg,
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Format::Png,
        [b'I', b'I', 42 | 43, 0, ..] | [b'M', b'M', 0, 42 | 43, ..] => Format::Tiff,
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Format::Gif,
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Format::WebP,
        [b'B', b'M', ..] => Format::Bmp,
        [b'P', b'1'..=b'7', b' ' | b'\n' | b'\r' | b'\t' | b'#', ..] => Format::Pnm,
        _ => return None,
    })
}
