//! A large image that is read window by window, in the type of its samples.

use std::io::Seek;
use std::path::{Path, PathBuf};

use ::tiff::tags::SampleFormat;

use crate::error::Error;

use super::codec::Codec;
use super::formats::png;
use super::formats::tiff::{Chunks, Piece};
use super::header::Header;
use super::image_file::ImageFile;
use super::pixels::image::{Image, Rect};
use super::source::{READER_BYTES, Reader, Reason, guarded};

/// A part of a [`Raster`].
#[derive(Clone, Debug, PartialEq)]
pub struct RasterWindow {
    /// `[height, width, bands]`, flat: row by row, the samples of a pixel side by side.
    pub samples: Samples,
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
    /// Samples of a pixel.
    pub bands: usize,
}

/// A large image, for example a satellite scene, that is read window by window.
///
/// Of a TIFF only the strips or tiles that touch a window are read, in all sample types. Of a PNG the rows down to the end of the window
/// are read. Other formats are decoded whole for the first window, and kept. Pixels keep the order in which they are stored: an orientation
/// tag is not applied. The alpha band is read of a TIFF only. Bands of a TIFF that are neither colour nor alpha are read when its
/// photometric interpretation is gray, and dropped when it is RGB.
#[derive(Debug)]
pub struct Raster {
    path: PathBuf,
    size: [usize; 2],
    bands: usize,
    sample_type: SampleType,
    limit: u64,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Chunks {
        chunks: Box<Chunks>,
        bytes: u64,
    },
    Rows {
        reader: Box<Reader>,
        header: Box<Header>,
        layout: Box<png::Layout>,
    },
    /// The file until the first window, then the decoded image, which takes `bytes`.
    Whole {
        file: Option<Box<ImageFile>>,
        image: Option<Image>,
        bytes: u64,
    },
}

impl Raster {
    /// Opens a file and reads its header. Reading a window may take `limit` bytes.
    ///
    /// # Errors
    /// Those of [`ImageFile::open`], and [`Error::Unsupported`] for a TIFF whose samples are not numbers of 8 to 64 bits.
    pub fn open(path: impl AsRef<Path>, limit: u64) -> Result<Self, Error> {
        Self::new(ImageFile::open(path)?, limit)
    }

    /// Makes a raster of a file whose header was read. Reading a window may take `limit` bytes.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn new(file: ImageFile, limit: u64) -> Result<Self, Error> {
        let path = file.path().to_owned();
        let header = file.header().clone();
        let size = header.stored_size();
        let bands = if header.channels == 1 { 1 } else { 3 };
        let eight = SampleType::U8;
        let (bands, sample_type, source) = match file.codec().clone() {
            Codec::Tiff(layout) => {
                let kind = sample_type(layout.kind, layout.bits).map_err(|reason| reason.into_error(&path))?;
                let (bands, bytes) = (layout.samples, layout.chunk_bytes());
                if bytes > limit {
                    let [height, width] = size;
                    return Err(Error::TooLarge { path, height, width, bytes, limit });
                }
                let chunks = file.into_reader().and_then(|reader| {
                    guarded(|| Chunks::open(reader, layout.clone())).map_err(|reason| reason.into_error(&path))
                })?;
                (bands, kind, Source::Chunks { chunks: Box::new(chunks), bytes })
            }
            Codec::Png(layout) if layout.streams() => {
                let kind = if header.bits == 16 { SampleType::U16 } else { eight };
                let reader = Box::new(file.into_reader()?);
                (bands, kind, Source::Rows { reader, header: Box::new(header), layout: Box::new(layout) })
            }
            _ => {
                let file = Box::new(file.into_stored());
                let bytes = file.whole_plan(bands, u64::MAX)?.bytes();
                (bands, eight, Source::Whole { file: Some(file), image: None, bytes })
            }
        };
        Ok(Self { path, size, bands, sample_type, limit, source })
    }

    /// Rows.
    pub fn height(&self) -> usize {
        self.size[0]
    }

    /// Columns.
    pub fn width(&self) -> usize {
        self.size[1]
    }

    /// Samples of a pixel.
    pub fn bands(&self) -> usize {
        self.bands
    }

    /// The type of a sample in the file.
    pub fn sample_type(&self) -> SampleType {
        self.sample_type
    }

    /// An upper bound of the bytes that reading a window of `height` rows and `width` columns takes at its peak, its
    /// samples included.
    pub fn window_bytes(&self, height: usize, width: usize) -> u64 {
        let sample = if self.sample_type == SampleType::U8 { 1 } else { 4 };
        let own = (height as u64).saturating_mul(width as u64).saturating_mul((self.bands * sample) as u64);
        let reading = match &self.source {
            Source::Chunks { bytes, .. } => *bytes,
            Source::Rows { layout, .. } => layout.reading_bytes(self.size) + (width * self.bands * 2) as u64,
            Source::Whole { bytes, .. } => {
                // The first window decodes the image, which is kept.
                return bytes.saturating_add(own);
            }
        };
        own.saturating_add(reading + READER_BYTES)
    }

    /// Reads `height` rows and `width` columns from row `top`, column `left`.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for a window that is empty or not within the image, [`Error::TooLarge`] when it
    /// takes more bytes than the limit, [`Error::Format`] when the file is damaged or cut short.
    pub fn window(&mut self, top: usize, left: usize, height: usize, width: usize) -> Result<RasterWindow, Error> {
        let inside = |first: usize, length: usize, size: usize| {
            length > 0 && first.checked_add(length).is_some_and(|end| end <= size)
        };
        if !(inside(top, height, self.size[0]) && inside(left, width, self.size[1])) {
            let [rows, columns] = self.size;
            let value = format!("{height}x{width} at ({top}, {left}) of {rows}x{columns}");
            return Err(Error::setting("window", value, "a part of the image"));
        }
        let part = Rect { top, left, bottom: top + height, right: left + width };
        let (bands, eight) = (self.bands, self.sample_type == SampleType::U8);
        let count = height * width * bands;
        let bytes = self.window_bytes(height, width);
        if bytes > self.limit {
            let whole = matches!(self.source, Source::Whole { .. });
            let [height, width] = if whole { self.size } else { [height, width] };
            return Err(Error::TooLarge { path: self.path.clone(), height, width, bytes, limit: self.limit });
        }
        let mut samples = if eight { Samples::U8(vec![0; count]) } else { Samples::F32(vec![0.0; count]) };
        let kind = self.sample_type;
        let mut put = |y: usize, x: usize, bytes: &[u8]| {
            let at = ((y - top) * width + x - left) * bands;
            match &mut samples {
                Samples::U8(samples) => samples[at..at + bytes.len()].copy_from_slice(bytes),
                Samples::F32(samples) => to_f32(kind, bytes, &mut samples[at..]),
            }
        };
        let read = match &mut self.source {
            Source::Chunks { chunks, .. } => guarded(|| {
                chunks.read(&part, |piece| {
                    if let Piece::Row { y, x, samples } = piece {
                        put(y, x, samples);
                    }
                })
            }),
            Source::Rows { reader, header, layout } => guarded(|| rows(reader, header, layout, &part, put)),
            Source::Whole { file, image, .. } => {
                if let Some(file) = file.take() {
                    let plan = file.whole_plan(bands, self.limit)?;
                    *image = Some(file.decode(&plan)?);
                }
                let Some(image) = image else {
                    return Err(Error::format(&self.path, "an earlier attempt to decode it failed"));
                };
                for y in top..top + height {
                    let at = (y * image.width + left) * bands;
                    put(y, left, &image.pixels[at..at + width * bands]);
                }
                Ok(())
            }
        };
        read.map_err(|reason| reason.into_error(&self.path))?;
        Ok(RasterWindow { samples, height, width, bands })
    }
}

/// The rows of a PNG without its alpha, 16 bits in the machine's byte order.
fn rows(
    reader: &mut Reader,
    header: &Header,
    layout: &png::Layout,
    part: &Rect,
    mut put: impl FnMut(usize, usize, &[u8]),
) -> Result<(), Reason> {
    reader.rewind()?;
    let bytes = if header.bits == 16 { 2 } else { 1 };
    let (stored, kept) = (layout.pixels.samples() * bytes, header.channels * bytes);
    let mut row = vec![0; part.size()[1] * kept];
    layout.rows(reader, header.stored_size()[1], part, true, |y, pixels| {
        for (pixel, out) in pixels.chunks_exact(stored).zip(row.chunks_exact_mut(kept)) {
            out.copy_from_slice(&pixel[..kept]);
        }
        if bytes == 2 {
            row.as_chunks_mut::<2>()
                .0
                .iter_mut()
                .for_each(|sample| *sample = u16::from_be_bytes(*sample).to_ne_bytes());
        }
        put(part.top + y, part.left, &row);
    })
}

/// The type of a sample in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names say it all")]
pub enum SampleType {
    U8,
    U16,
    U32,
    U64,
    I8,
    I16,
    I32,
    I64,
    F16,
    F32,
    F64,
}

/// Samples of 8 bits, or as floats.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Samples {
    /// Samples of a file of [`SampleType::U8`].
    U8(Vec<u8>),
    /// Samples of any other type, not scaled; integers keep their 24 leading bits.
    F32(Vec<f32>),
}

/// The type of a TIFF's samples.
pub(super) fn sample_type(format: SampleFormat, bits: usize) -> Result<SampleType, Reason> {
    Ok(match (format, bits) {
        (SampleFormat::Uint, 1 | 2 | 4 | 8) => SampleType::U8,
        (SampleFormat::Uint, 16) => SampleType::U16,
        (SampleFormat::Uint, 32) => SampleType::U32,
        (SampleFormat::Uint, 64) => SampleType::U64,
        (SampleFormat::Int, 8) => SampleType::I8,
        (SampleFormat::Int, 16) => SampleType::I16,
        (SampleFormat::Int, 32) => SampleType::I32,
        (SampleFormat::Int, 64) => SampleType::I64,
        (SampleFormat::IEEEFP, 16) => SampleType::F16,
        (SampleFormat::IEEEFP, 32) => SampleType::F32,
        (SampleFormat::IEEEFP, 64) => SampleType::F64,
        _ => {
            return Err(Reason::Unsupported(format!(
                "{format:?} samples of {bits} bits, expected integers or floats of 8 to 64"
            )));
        }
    })
}

/// Samples in the machine's byte order to floats.
pub(super) fn to_f32(kind: SampleType, bytes: &[u8], out: &mut [f32]) {
    fn each<const N: usize>(bytes: &[u8], out: &mut [f32], value: impl Fn([u8; N]) -> f32) {
        out.iter_mut().zip(bytes.as_chunks::<N>().0).for_each(|(out, bytes)| *out = value(*bytes));
    }
    match kind {
        SampleType::U8 => each(bytes, out, |[byte]| f32::from(byte)),
        SampleType::I8 => each(bytes, out, |bytes| f32::from(i8::from_ne_bytes(bytes))),
        SampleType::U16 => each(bytes, out, |bytes| f32::from(u16::from_ne_bytes(bytes))),
        SampleType::I16 => each(bytes, out, |bytes| f32::from(i16::from_ne_bytes(bytes))),
        SampleType::U32 => each(bytes, out, |bytes| u32::from_ne_bytes(bytes) as f32),
        SampleType::I32 => each(bytes, out, |bytes| i32::from_ne_bytes(bytes) as f32),
        SampleType::U64 => each(bytes, out, |bytes| u64::from_ne_bytes(bytes) as f32),
        SampleType::I64 => each(bytes, out, |bytes| i64::from_ne_bytes(bytes) as f32),
        SampleType::F16 => each(bytes, out, |bytes| half::f16::from_ne_bytes(bytes).to_f32()),
        SampleType::F32 => each(bytes, out, f32::from_ne_bytes),
        SampleType::F64 => each(bytes, out, |bytes| f64::from_ne_bytes(bytes) as f32),
    }
}
