//! The chunks of a WebP: its orientation, and the bytes that decoding takes.
//!
//! By hand, since the decoder does not report the bytes that decoding takes, from which the plan of a file is made.

use std::io::{Read, Seek, SeekFrom};

use crate::decode::pixels::orientation::Orientation;
use crate::decode::source::{Reader, Reason, take};

/// Facts in the chunks of a WebP that its decoder does not report.
#[derive(Debug)]
pub(super) struct Chunks {
    pub(super) orientation: Orientation,
    /// Bytes that decoding takes at its peak besides the decoded pixels.
    pub(super) inside: u64,
}

/// The coding of a chunk, and its bytes in the file.
#[derive(Clone, Copy)]
enum Coded {
    Lossy { bytes: u64 },
    Lossless { bytes: u64 },
}

#[derive(Clone, Copy)]
struct Alpha {
    stored: bool,
    bytes: u64,
}

/// Bytes of a WebP's EXIF and XMP that are read: the orientation is at the beginning, a thumbnail at the end.
const EXIF_BYTES: u64 = 1 << 16;

/// Reads the chunks as image-webp does, but does not trust their lengths.
///
/// Source: RFC 9649, section 2; for the bytes that decoding takes, image-webp 0.2.4, `decoder.rs` and `vp8.rs`.
pub(super) fn read(reader: &mut Reader, [height, width]: [usize; 2], alpha: bool) -> Result<Chunks, Reason> {
    let end = reader.seek(SeekFrom::End(0))?;
    let canvas = [height, width];
    let mut found = Found::default();
    let mut at = 12;
    while let Some(chunk) = Chunk::at(reader, at, end)? {
        match &chunk.name {
            b"EXIF" if found.exif.is_none() => {
                if chunk.cut {
                    return Err("the WebP ends within its EXIF".into());
                }
                found.exif = Some(chunk.body(reader, EXIF_BYTES)?);
            }
            b"XMP " if found.xmp.is_none() && !chunk.cut => found.xmp = Some(chunk.body(reader, EXIF_BYTES)?),
            b"VP8 " | b"VP8L" if found.coded.is_none() => found.coded = Some(chunk.coded(reader, canvas)?),
            b"ALPH" if found.alpha.is_none() => found.alpha = Some(chunk.alpha(reader)?),
            // The first one is decoded.
            b"ANMF" if found.frame.is_none() => found.frame = Some(frame(reader, &chunk, end)?),
            _ => (),
        }
        at = chunk.next;
    }
    let exif = found.exif.and_then(|exif| Orientation::in_exif(&exif));
    let orientation = exif.or_else(|| found.xmp.and_then(|xmp| Orientation::in_xmp(&xmp))).unwrap_or_default();
    let inside = match (found.frame, found.coded) {
        // In image-webp the animation flag decides; without it, pixels beside the frames are required.
        (Some(inside), None) => {
            if height * width > MAX_CANVAS {
                return Err(Reason::Unsupported(format!(
                    "an animated WebP of {height}x{width} pixels, expected at most 2^30 in all"
                )));
            }
            // The frame is drawn on a canvas, which is copied.
            inside.decoding.max(inside.frame + 4 * (height * width) as u64)
        }
        (None, Some(Coded::Lossless { bytes })) => {
            // RGBA is copied to RGB; with alpha it is decoded in place.
            let rgba = if alpha { 0 } else { 4 * (height * width) as u64 };
            rgba + lossless(canvas, bytes)
        }
        (None, Some(Coded::Lossy { bytes })) if alpha => {
            lossy(canvas, bytes).max(planes(canvas) + alpha_bytes(canvas, found.alpha))
        }
        (None, Some(Coded::Lossy { bytes })) => lossy(canvas, bytes),
        (Some(_), Some(_)) => return Err("the WebP has frames of an animation and a still image, expected one".into()),
        (None, None) => return Err("the WebP has no image data".into()),
    };
    Ok(Chunks { orientation, inside })
}

/// image-webp counts the bytes of an animation's canvas in 32 bits.
const MAX_CANVAS: usize = 1 << 30;

#[derive(Default)]
struct Found {
    exif: Option<Vec<u8>>,
    xmp: Option<Vec<u8>>,
    coded: Option<Coded>,
    alpha: Option<Alpha>,
    frame: Option<Frame>,
}

struct Chunk {
    name: [u8; 4],
    /// The start of its body, the bytes of the body in the file, and the start of the next chunk.
    start: u64,
    bytes: u64,
    cut: bool,
    next: u64,
}

impl Chunk {
    fn at(reader: &mut Reader, at: u64, end: u64) -> Result<Option<Self>, Reason> {
        if at.saturating_add(8) > end {
            return Ok(None);
        }
        // Relative, so that small chunks are skipped within the buffer.
        let now = reader.stream_position()?;
        reader.seek_relative(at.wrapping_sub(now) as i64)?;
        let [n0, n1, n2, n3, length @ ..]: [u8; 8] = take(reader, CUT)?;
        let length = u64::from(u32::from_le_bytes(length));
        let start = at + 8;
        let bytes = length.min(end - start);
        Ok(Some(Self { name: [n0, n1, n2, n3], start, bytes, cut: bytes < length, next: start + length + length % 2 }))
    }

    /// At most `most` bytes of its body.
    fn body(&self, reader: &mut Reader, most: u64) -> Result<Vec<u8>, Reason> {
        let mut body = vec![0; self.bytes.min(most) as usize];
        self.read(reader, &mut body)?;
        Ok(body)
    }

    fn read(&self, reader: &mut Reader, body: &mut [u8]) -> Result<(), Reason> {
        reader.seek(SeekFrom::Start(self.start))?;
        reader.read_exact(body).map_err(|_| CUT.into())
    }

    fn alpha(&self, reader: &mut Reader) -> Result<Alpha, Reason> {
        let method = self.body(reader, 1)?;
        Ok(Alpha { stored: method.first().is_some_and(|method| method & 3 == 0), bytes: self.bytes })
    }

    /// Checks the coded size: the decoder allocates for it before it compares.
    fn coded(&self, reader: &mut Reader, expected: [usize; 2]) -> Result<Coded, Reason> {
        if self.name == *b"VP8L" {
            return Ok(Coded::Lossless { bytes: self.bytes });
        }
        let mut start = [0; 10];
        self.read(reader, &mut start)?;
        let side = |at: usize| usize::from(u16::from_le_bytes([start[at], start[at + 1]]) & 0x3fff);
        let [height, width] = [side(8), side(6)];
        if [height, width] != expected {
            let [rows, columns] = expected;
            return Err(
                format!("{height}x{width} pixels in the image data of the WebP, expected {rows}x{columns}").into()
            );
        }
        Ok(Coded::Lossy { bytes: self.bytes })
    }
}

/// Bytes of the first frame of an animation while it is decoded, and after.
struct Frame {
    decoding: u64,
    frame: u64,
}

fn frame(reader: &mut Reader, chunk: &Chunk, end: u64) -> Result<Frame, Reason> {
    let mut start = [0; 16];
    chunk.read(reader, &mut start)?;
    let side = |at: usize| u32::from_le_bytes([start[at], start[at + 1], start[at + 2], 0]) as usize + 1;
    let [height, width] = [side(9), side(6)];
    if height.max(width) > 1 << 14 {
        return Err(format!("a frame of {height}x{width} pixels in the WebP, expected at most 16384x16384").into());
    }
    let size = [height, width];
    let pixels = (height * width) as u64;
    let mut data = Chunk::at(reader, chunk.start + 16, end)?.ok_or(CUT)?;
    let alpha = match &data.name {
        b"ALPH" => {
            let alpha = data.alpha(reader)?;
            data = Chunk::at(reader, data.next, end)?.ok_or(CUT)?;
            Some(alpha)
        }
        _ => None,
    };
    Ok(match (data.coded(reader, size)?, alpha) {
        (Coded::Lossless { bytes }, _) => Frame { decoding: 4 * pixels + lossless(size, bytes), frame: 4 * pixels },
        (Coded::Lossy { bytes }, None) => {
            Frame { decoding: lossy(size, bytes).max(planes(size) + 3 * pixels), frame: 3 * pixels }
        }
        (Coded::Lossy { bytes }, Some(alpha)) => {
            // The alpha is read first, and kept.
            let colours = pixels + lossy(size, bytes).max(planes(size) + 4 * pixels);
            Frame { decoding: alpha_bytes(size, Some(alpha)).max(colours), frame: 4 * pixels }
        }
    })
}

/// Luma and two quarters of chroma, in whole macroblocks.
fn planes([height, width]: [usize; 2]) -> u64 {
    (height.next_multiple_of(16) * width.next_multiple_of(16)) as u64 * 3 / 2
}

/// The coded bytes are read into a growing vector and copied. Besides them there is a growing vector with 30 bytes for each
/// macroblock, and rows of borders.
fn lossy(size: [usize; 2], bytes: u64) -> u64 {
    let blocks = size.map(|side| side.div_ceil(16)).iter().product::<usize>().next_power_of_two().max(4);
    planes(size) + (3 * bytes).max(bytes + 30 * blocks as u64) + 8 * size[1] as u64
}

/// Predictors, colour transforms and the numbers of the codes, of blocks of at least 4x4 pixels (RFC 9649, section 3),
/// and the tables of the codes.
///
/// A group of codes takes about 20 KiB of tables. Encoders write fewer than a hundred groups for a photograph. A malicious
/// file can have 2^16, which only decoding tells.
fn lossless([height, width]: [usize; 2], bytes: u64) -> u64 {
    let blocks = (height.div_ceil(4) * width.div_ceil(4)) as u64;
    (4 + 4 + 6) * blocks + (CODES * bytes).min(MOST_CODES)
}

/// Bytes of tables for each byte of the file, and the most in all.
const CODES: u64 = 16;
const MOST_CODES: u64 = 2 << 20;

/// Alpha is coded as the green channel of an image without a header, or stored uncompressed.
fn alpha_bytes(size: [usize; 2], alpha: Option<Alpha>) -> u64 {
    let pixels = (size[0] * size[1]) as u64;
    match alpha {
        Some(Alpha { stored: true, .. }) => pixels,
        // Without an alpha chunk here, the decoder may still find one.
        alpha => 5 * pixels + lossless(size, alpha.map_or(u64::MAX / CODES, |alpha| alpha.bytes)),
    }
}

const CUT: &str = "the WebP ends too early";
