use std::io::{self, BufRead, Read, Seek, SeekFrom};

use jpeg_decoder::PixelFormat;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;

use crate::Image;

use super::colour::Pixels;
use super::header::{self, Format, Header};
use super::input::{Input, Reader};
use super::patched::Patched;
use super::reason::Reason;
use super::segments::Segments;
use super::{DecodePath, Orientation};

/// What a frame header says of how the samples are coded.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Layout {
    /// Horizontal and vertical sampling factor of each component.
    sampling: Vec<[usize; 2]>,
    progressive: bool,
    /// Whether all components are in the first scan.
    interleaved: bool,
    /// Three components that are RGB by Adobe's marker, which zune-jpeg takes for damaged CMYK.
    adobe_rgb: bool,
    /// Where the first scan begins.
    first_scan: u64,
}

/// Walks the markers up to the first scan. Source: ITU-T T.81, annex B.
pub(super) fn header(reader: &mut Reader) -> Result<Header, Reason> {
    read_bytes::<2>(reader)?; // the start of the image, by which the format was told
    let (mut orientation, mut adobe_transform) = (None, None);
    let mut frame: Option<Frame> = None;
    loop {
        let marker = next_marker(reader)?;
        // As Segments refuses it.
        if matches!(marker, 0x00..=0xbf | 0xd0..=0xd7) {
            return Err(
                format!("0xff{marker:02x} between the segments of the JPEG, expected a segment's marker").into()
            );
        }
        if marker == 0xd8 {
            continue;
        }
        if marker == 0xd9 {
            return Err("the JPEG ends before its first scan".into());
        }
        let length = usize::from(u16::from_be_bytes(read_bytes(reader)?));
        let Some(length) = length.checked_sub(2) else {
            return Err(
                format!("segment 0x{marker:02x} of the JPEG is {length} bytes long, expected at least 2").into()
            );
        };
        match marker {
            0xc0..=0xc2 if frame.is_none() => frame = Some(Frame::read(&read_vec(reader, length)?, marker == 0xc2)?),
            0xc0..=0xc2 => return Err("the JPEG has several frame headers, expected one".into()),
            0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf => {
                return Err(Reason::Unsupported(format!(
                    "JPEG process 0x{marker:02x}, expected baseline, extended or progressive Huffman"
                )));
            }
            0xda => {
                let frame = frame.ok_or("the JPEG has a scan before its frame header")?;
                let scanned = usize::from(read_bytes::<1>(reader)?[0]);
                let first_scan = reader.stream_position().map_err(|e| e.to_string())?;
                return Ok(frame.header(scanned, orientation.unwrap_or_default(), adobe_transform, first_scan));
            }
            0xe1 if orientation.is_none() => {
                let segment = read_vec(reader, length)?;
                orientation = segment.strip_prefix(b"Exif\0\0").map(Orientation::in_exif);
            }
            0xee => {
                let segment = read_vec(reader, length)?;
                adobe_transform = segment.strip_prefix(b"Adobe").and_then(|rest| rest.get(6)).copied();
            }
            _ => reader.seek_relative(length as i64).map_err(|e| e.to_string())?,
        }
    }
}

struct Frame {
    height: usize,
    width: usize,
    progressive: bool,
    ids: Vec<u8>,
    sampling: Vec<[usize; 2]>,
}

impl Frame {
    fn read(segment: &[u8], progressive: bool) -> Result<Self, Reason> {
        let [bits, h1, h0, w1, w0, count, components @ ..] = segment else {
            return Err("the frame header of the JPEG is cut short".into());
        };
        let [height, width] = [[*h1, *h0], [*w1, *w0]].map(|bytes| usize::from(u16::from_be_bytes(bytes)));
        if *bits != 8 {
            return Err(Reason::Unsupported(format!("a JPEG of {bits} bits a sample, expected 8")));
        }
        if height == 0 || width == 0 {
            return Err(format!("{height}x{width} pixels, expected at least 1x1").into());
        }
        if ![1, 3, 4].contains(count) || components.len() != 3 * usize::from(*count) {
            return Err(Reason::Unsupported(format!("a JPEG of {count} components, expected 1, 3 or 4")));
        }
        let components = components.as_chunks::<3>().0;
        let mut sampling: Vec<[usize; 2]> =
            components.iter().map(|[_, hv, _]| [usize::from(hv >> 4), usize::from(hv & 15)]).collect();
        if let Some([h, v]) = sampling.iter().find(|[h, v]| !(1..=4).contains(h) || !(1..=4).contains(v)) {
            return Err(format!("a JPEG component sampled {h}x{v}, expected 1x1 to 4x4").into());
        }
        if let [only] = &mut sampling[..] {
            *only = [1, 1]; // the factors are relative to each other
        }
        Ok(Self { height, width, progressive, ids: components.iter().map(|[id, ..]| *id).collect(), sampling })
    }

    fn header(self, scanned: usize, orientation: Orientation, adobe_transform: Option<u8>, first_scan: u64) -> Header {
        let [height, width] = orientation.size([self.height, self.width]);
        let channels = self.sampling.len();
        let interleaved = scanned == channels;
        Header {
            format: Format::Jpeg,
            height,
            width,
            channels,
            bits: 8,
            alpha: false,
            orientation,
            progressive: self.progressive || !interleaved,
            frames: Some(1),
            layout: header::Layout::Jpeg(Layout {
                adobe_rgb: adobe_transform == Some(0) && channels == 3 && self.ids != *b"RGB",
                progressive: self.progressive,
                sampling: self.sampling,
                interleaved,
                first_scan,
            }),
        }
    }
}

fn next_marker(reader: &mut Reader) -> Result<u8, String> {
    // Pillow and libjpeg pass over bytes between segments too.
    while read_bytes::<1>(reader)? != [0xff] {}
    let mut marker = 0xff;
    while marker == 0xff {
        [marker] = read_bytes(reader)?;
    }
    Ok(marker)
}

fn read_bytes<const N: usize>(reader: &mut Reader) -> Result<[u8; N], String> {
    let mut bytes = [0; N];
    reader.read_exact(&mut bytes).map_err(|_| "the JPEG ends within its header".to_owned())?;
    Ok(bytes)
}

fn read_vec(reader: &mut Reader, length: usize) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; length];
    reader.read_exact(&mut bytes).map_err(|_| "the JPEG ends within its header".to_owned())?;
    Ok(bytes)
}

impl Layout {
    fn pixels(&self) -> Pixels {
        if self.sampling.len() == 1 { Pixels::Gray } else { Pixels::Rgb }
    }

    /// Channels that are kept when so many are asked for.
    pub(super) fn kept(&self, asked: usize) -> usize {
        self.pixels().kept(asked)
    }

    /// Whether reducing pays: the inverse transform is most of the work of a sequential JPEG, little of a progressive
    /// one, where all coefficients are kept besides. libjpeg-turbo gains by it all the same.
    pub(super) fn scales_well(&self) -> bool {
        self.sequential() || self.turbo()
    }

    /// Whether a row of blocks is final as soon as it was read.
    fn sequential(&self) -> bool {
        !self.progressive && self.interleaved
    }

    /// Whether libjpeg-turbo decodes it, which leaves CMYK as it is.
    fn turbo(&self) -> bool {
        cfg!(feature = "turbo") && self.sampling.len() != 4
    }

    /// The largest of 8, 4 and 2 that leaves at least `least` `[rows, columns]` of the part that is wanted.
    pub(super) fn denominator(factor: usize) -> Option<usize> {
        [8, 4, 2].into_iter().find(|denominator| *denominator <= factor)
    }

    /// `[height, width]` of the pixels that come out.
    pub(super) fn reduced([height, width]: [usize; 2], denominator: usize) -> [usize; 2] {
        [height.div_ceil(denominator), width.div_ceil(denominator)]
    }

    /// Bytes that decoding takes at its peak, the pixels that come out among them.
    pub(super) fn bytes(&self, size: [usize; 2], path: DecodePath, file_bytes: u64) -> u64 {
        let [height, width] = size;
        let hmax = self.sampling.iter().map(|[h, _]| *h).max().unwrap_or(1);
        let vmax = self.sampling.iter().map(|[_, v]| *v).max().unwrap_or(1);
        let [columns, rows] = [width.div_ceil(8 * hmax) * 8, height.div_ceil(8 * vmax) * 8];
        // Samples of all components with their padding, and in one row of blocks.
        let samples: u64 = self.sampling.iter().map(|[h, v]| (columns * h * rows * v) as u64).sum();
        let row: u64 = self.sampling.iter().map(|[h, v]| (columns * h * 8 * v) as u64).sum();
        let components = self.sampling.len() as u64;
        let coefficients = if self.sequential() { 0 } else { 2 * samples };
        match path {
            _ if self.turbo() => {
                let [height, width] = Self::reduced(size, path.factor());
                // A vector that grows while the file is read into it may be twice its size.
                coefficients + 2 * file_bytes + (height * width) as u64 * components + 4 * row + SCALED_STATE
            }
            DecodePath::ScaledJpeg { denominator } => {
                let area = (denominator * denominator) as u64;
                let [height, width] = Self::reduced(size, denominator);
                // A gray plane becomes the image itself.
                let image = if components == 1 { 0 } else { (height * width) as u64 * components };
                coefficients + samples / area + image + 4 * row + SCALED_STATE
            }
            _ if self.adobe_rgb => coefficients + samples + 3 * (height * width) as u64 + 4 * row + SCALED_STATE,
            _ => {
                let image = (height * width) as u64 * if components == 1 { 1 } else { 3 };
                // Upsampling keeps whole rows of blocks, as i16, before and after.
                let upsampled = (columns * hmax * 8 * vmax) as u64 * components;
                let rows = if hmax * vmax == 1 { 2 * row } else { 2 * row + 3 * upsampled };
                coefficients + image + rows + WHOLE_STATE
            }
        }
    }

    /// Decodes the pixels to 1 or 3 channels.
    pub(super) fn decode(&self, reader: Reader, path: DecodePath, channels: usize) -> Result<Image, Reason> {
        match path {
            #[cfg(feature = "turbo")]
            _ if self.turbo() => super::turbo::decode(reader, self.pixels(), path.factor(), channels),
            DecodePath::ScaledJpeg { denominator } => scaled(reader, denominator, channels),
            _ if self.adobe_rgb => scaled(reader, 1, channels),
            _ => whole(reader, self.first_scan, self.pixels(), channels),
        }
    }
}

/// Huffman and quantization tables, and a comment, which is read whole before it is dropped.
const SCALED_STATE: u64 = 128 * 1024;
const WHOLE_STATE: u64 = 128 * 1024;

/// Whether the image's end marker is there. zune-jpeg does not notice when just the last row of blocks is cut.
fn ends(reader: &mut Reader, first_scan: u64) -> io::Result<bool> {
    const END: [u8; 2] = [0xff, 0xd9];
    let mut last = [0; 2];
    let length = reader.seek(SeekFrom::End(-2))?;
    reader.read_exact(&mut last)?;
    if last == END && length >= first_scan {
        return Ok(true);
    }
    // Something follows the image, as a second one does in a multi-picture file.
    reader.seek(SeekFrom::Start(first_scan))?;
    let mut after_ff = false;
    loop {
        let piece = reader.fill_buf()?;
        if piece.is_empty() {
            return Ok(false);
        }
        if (after_ff && piece[0] == END[1]) || piece.windows(2).any(|pair| pair == END) {
            return Ok(true);
        }
        after_ff = piece[piece.len() - 1] == END[0];
        let length = piece.len();
        reader.consume(length);
    }
}

/// The file from its first byte on.
pub(super) fn without_metadata(mut reader: Reader) -> Result<Patched<Input, Segments>, String> {
    reader.rewind().map_err(|e| e.to_string())?;
    Ok(Patched::new(reader.into_inner(), Segments::default()))
}

fn whole(mut reader: Reader, first_scan: u64, pixels: Pixels, channels: usize) -> Result<Image, Reason> {
    if !ends(&mut reader, first_scan).map_err(|e| e.to_string())? {
        return Err("the JPEG is cut short: it has no end marker".into());
    }
    let reader = without_metadata(reader)?;
    let colours = if pixels == Pixels::Gray { ColorSpace::Luma } else { ColorSpace::RGB };
    let sides = usize::from(u16::MAX);
    // Strict: a file that is cut short is an error, not an image that is gray at the bottom.
    let options = DecoderOptions::default().set_strict_mode(true).set_max_width(sides).set_max_height(sides);
    let options = options.jpeg_set_out_colorspace(colours);
    let mut decoder = zune_jpeg::JpegDecoder::new_with_options(reader, options);
    let mut image = decoder.decode().map_err(|e| e.to_string())?;
    let (width, height) = decoder.dimensions().ok_or("the JPEG has no size")?;
    drop(decoder);
    pixels.convert_in_place(&mut image, channels);
    Ok(Image { pixels: image, height, width, channels })
}

fn scaled(reader: Reader, denominator: usize, channels: usize) -> Result<Image, Reason> {
    let mut decoder = jpeg_decoder::Decoder::new(without_metadata(reader)?);
    decoder.read_info().map_err(|e| e.to_string())?;
    let info = decoder.info().ok_or("the JPEG has no frame header")?;
    let sides = [info.width, info.height].map(|side| side.div_ceil(denominator as u16));
    decoder.scale(sides[0], sides[1]).map_err(|e| e.to_string())?;
    let mut image = decoder.decode().map_err(|e| e.to_string())?;
    let info = decoder.info().ok_or("the JPEG has no frame header")?;
    let pixels = match info.pixel_format {
        PixelFormat::L8 => Pixels::Gray,
        PixelFormat::RGB24 => Pixels::Rgb,
        PixelFormat::CMYK32 => Pixels::Cmyk,
        PixelFormat::L16 => return Err(Reason::Unsupported("a JPEG of 16 bits a sample, expected 8".into())),
    };
    drop(decoder);
    pixels.convert_in_place(&mut image, channels);
    Ok(Image { pixels: image, height: usize::from(info.height), width: usize::from(info.width), channels })
}
