use std::io::{Read, Seek};

use super::input::Reader;
use super::reason::Reason;
use super::{Orientation, jpeg, other, png, tiff};

/// The format of an image file, told by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// JPEG, baseline or progressive.
    Jpeg,
    /// PNG, also animated.
    Png,
    /// TIFF and BigTIFF.
    Tiff,
    /// GIF.
    Gif,
    /// WebP, lossy or lossless.
    WebP,
    /// Windows bitmap.
    Bmp,
    /// PBM, PGM, PPM and PAM.
    Pnm,
}

/// What a file says about its image before any pixel is decoded.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Header {
    /// The format.
    pub format: Format,
    /// Rows of the image as it is seen, [`orientation`](Self::orientation) applied.
    pub height: usize,
    /// Columns of the image as it is seen.
    pub width: usize,
    /// Colour channels in the file: 1 (gray), 3, 4 (CMYK), or the bands of a TIFF.
    pub channels: usize,
    /// Bits of a sample in the file.
    pub bits: u8,
    /// Whether the pixels have transparency, which decoding leaves out.
    pub alpha: bool,
    /// How the stored pixels are turned to be seen.
    pub orientation: Orientation,
    /// A JPEG in several scans or an interlaced PNG: no row is final before all data were read.
    pub progressive: bool,
    /// Number of images in the file, as far as the header tells. The first one is decoded.
    pub frames: Option<u32>,
    pub(super) layout: Layout,
}

/// What planning needs of each format.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Layout {
    Jpeg(jpeg::Layout),
    Png(png::Layout),
    Tiff(tiff::Layout),
    Other(other::Layout),
}

impl Header {
    /// `[height, width]` of the pixels in the file's own order.
    pub(super) fn stored_size(&self) -> [usize; 2] {
        self.orientation.size([self.height, self.width])
    }

    /// Reads the header and nothing else. The error is a reason in words.
    pub(super) fn read(reader: &mut Reader) -> Result<Self, Reason> {
        let mut start = [0; 16];
        let length = fill(reader, &mut start)?;
        reader.rewind().map_err(|e| e.to_string())?;
        let header = match format(&start[..length]) {
            Some(Format::Jpeg) => jpeg::header(reader),
            Some(Format::Png) => png::header(reader),
            Some(Format::Tiff) => tiff::header(reader),
            Some(other) => other::header(reader, other),
            None if length == 0 => Err(Reason::from("the file is empty")),
            None => Err("expected JPEG, PNG, TIFF, GIF, WebP, BMP or PNM by its first bytes".into()),
        }?;
        match header.height.checked_mul(header.width) {
            Some(pixels) if pixels <= MAX_PIXELS => Ok(header),
            _ => Err(Reason::Unsupported(format!(
                "{}x{} pixels, expected at most 2^40 in all",
                header.height, header.width
            ))),
        }
    }
}

/// So that no count of bytes overflows.
pub(super) const MAX_PIXELS: usize = 1 << 40;

/// Reads until the buffer is full or the input ends.
fn fill(reader: &mut Reader, buffer: &mut [u8]) -> Result<usize, String> {
    let mut length = 0;
    while length < buffer.len() {
        match reader.read(&mut buffer[length..]).map_err(|e| e.to_string())? {
            0 => break,
            read => length += read,
        }
    }
    Ok(length)
}

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
