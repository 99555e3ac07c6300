//! An image file that is open: its header, its plans, its pixels.

use std::fs::File;
use std::io::{Cursor, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::Error;

use super::codec::Codec;
use super::header::Header;
use super::options::{Damage, DecodeOptions, Oversized, Quality};
use super::pixels::image::Image;
use super::pixels::orientation::Orientation;
use super::pixels::resample;
use super::pixels::view::View;
use super::plan::{DecodePlan, Planner, RandomCrops, within};
use super::source::{Input, Reader};

/// An open image file. Its header has been read, and no pixel decoded.
///
/// The first bytes tell the format, never the name. The file is read while it is decoded; only the feature `turbo` reads a
/// JPEG whole first.
///
/// ```
/// use kiln_data::{DecodeOptions, ImageFile, Quality, View};
///
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("photo.png");
/// # image::RgbImage::new(640, 480).save(&path)?;
/// let file = ImageFile::open(&path)?;
/// let header = file.header();
/// let view = View::whole(header.height, header.width).with_size(30, 40);
/// let options = DecodeOptions::new().with_quality(Quality::Fast).with_limit(16 << 20);
/// let plan = file.plan(&view, 3, &options)?;
/// assert!(plan.bytes() < 2 << 20);
/// let image = file.decode(&plan)?;
/// assert_eq!([image.height, image.width, image.channels], [30, 40, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ImageFile {
    path: PathBuf,
    reader: Reader,
    header: Header,
    codec: Codec,
    file_bytes: u64,
}

impl ImageFile {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// [`Error::Read`] for a file that cannot be opened, [`Error::Format`] for a file without a known
    /// [`Format`](crate::Format) or with a damaged header, [`Error::Unsupported`] for a kind that is not read.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        // Opening a pipe would wait for a writer.
        if !path.metadata().map_err(|e| Error::read(path, e))?.is_file() {
            return Err(Error::format(path, "it is no regular file"));
        }
        let file = File::open(path).map_err(|e| Error::read(path, e))?;
        Self::new(path.to_owned(), Input::File(file))
    }

    /// Reads the header of an image whose bytes are in memory. `name` stands for a path in messages.
    ///
    /// # Errors
    /// [`Error::Format`] and [`Error::Unsupported`] as for [`open`](Self::open).
    pub fn from_bytes(name: impl Into<PathBuf>, bytes: impl Into<Arc<[u8]>>) -> Result<Self, Error> {
        Self::new(name.into(), Input::Bytes(Cursor::new(bytes.into())))
    }

    fn new(path: PathBuf, mut input: Input) -> Result<Self, Error> {
        let ends = input.seek(SeekFrom::End(0)).and_then(|length| input.rewind().map(|()| length));
        let file_bytes = ends.map_err(|e| Error::read(&path, e))?;
        let mut reader = input.buffered();
        let (header, codec) = Codec::open(&mut reader).map_err(|reason| reason.into_error(&path))?;
        Ok(Self { path, reader, header, codec, file_bytes })
    }

    /// How its pixels are coded.
    pub(super) fn codec(&self) -> &Codec {
        &self.codec
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The file from its first byte on.
    pub(super) fn into_reader(mut self) -> Result<Reader, Error> {
        self.reader.rewind().map_err(|e| Error::read(&self.path, e))?;
        Ok(self.reader)
    }

    /// The file without its orientation: decoding gives the image as it is stored.
    pub(super) fn into_stored(mut self) -> Self {
        [self.header.height, self.header.width] = self.header.stored_size();
        self.header.orientation = Default::default();
        self
    }

    /// A plan for all pixels.
    pub(super) fn whole_plan(&self, channels: usize, limit: u64) -> Result<DecodePlan, Error> {
        let view = View::whole(self.header.height, self.header.width);
        let options =
            DecodeOptions::new().with_limit(limit).with_oversized(Oversized::Refuse).with_quality(Quality::Exact);
        self.planned(&view, channels, &options)
    }

    /// The facts in the header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Plans the best way to decode `view` to `channels`, 1 (gray) or 3 (RGB), under `options`, with the bytes that it takes. Decodes
    /// nothing.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for other channels and for a view that is empty or outside of the image,
    /// [`Error::TooLarge`] when every way takes more than the limit.
    pub fn plan(&self, view: &View, channels: usize, options: &DecodeOptions) -> Result<DecodePlan, Error> {
        if ![1, 3].contains(&channels) {
            return Err(Error::setting("channels", channels.to_string(), "1 (gray) or 3 (RGB)"));
        }
        view.check(self.header.height, self.header.width)?;
        self.planned(view, channels, options)
    }

    fn planned(&self, view: &View, channels: usize, options: &DecodeOptions) -> Result<DecodePlan, Error> {
        self.planner(channels, options).plan(view).map_err(|bytes| {
            let Header { height, width, .. } = self.header;
            Error::TooLarge { path: self.path.clone(), height, width, bytes, limit: options.limit }
        })
    }

    fn planner<'a>(&'a self, channels: usize, options: &'a DecodeOptions) -> Planner<'a> {
        let Self { header, codec, file_bytes, .. } = self;
        Planner { header, codec, channels, options, file_bytes: *file_bytes }
    }

    /// An upper bound of [`DecodePlan::bytes`] over all plans for one of `crops`.
    pub(crate) fn random_crop_bytes(&self, crops: &RandomCrops, channels: usize, options: &DecodeOptions) -> u64 {
        self.planner(channels, options).most_bytes(crops)
    }

    /// Decodes by a plan for this file: upright, resized, mirrored if planned, 8 bits a sample.
    ///
    /// Transparency is dropped, as by Pillow's `convert("RGB")`; RGB becomes gray by ITU-R 601 luma; samples of 16 bits
    /// keep their high byte.
    ///
    /// # Errors
    /// [`Error::Format`] when the file is damaged or cut short, [`Error::Repairable`] when it is damaged, could be read, and
    /// the options refuse that, [`Error::Unsupported`] when it is of a kind that is not read, [`Error::Resize`].
    pub fn decode(self, plan: &DecodePlan) -> Result<Image, Error> {
        self.pixels(plan)?.finish(plan)
    }

    /// [`decode`](Self::decode) that also returns the damage that was repaired. Other programs warn about it.
    ///
    /// # Errors
    /// As [`decode`](Self::decode).
    pub fn decode_with_warning(self, plan: &DecodePlan) -> Result<DecodedImage, Error> {
        let decoded = self.pixels(plan)?;
        let damage = decoded.damage;
        Ok(DecodedImage { image: decoded.finish(plan)?, damage })
    }

    /// The first half of [`decode`](Self::decode): reads the file.
    pub(crate) fn pixels(self, plan: &DecodePlan) -> Result<Decoded, Error> {
        let Self { path, mut reader, header, codec, .. } = self;
        reader.rewind().map_err(|e| Error::read(&path, e))?;
        let size = header.stored_size();
        let (factor, part, kept) = (plan.path.factor(), &plan.part, plan.kept);
        let decoded = codec.decode(reader, size, plan.path, part, kept);
        let (decoded, damage) = decoded.map_err(|reason| reason.into_error(&path))?;
        if let (Some(damage), Damage::Refuse) = (damage, plan.damage) {
            return Err(Error::Repairable { path, damage });
        }
        // The file may have changed since its header was read.
        let expected = part.size().map(|side| side.div_ceil(factor));
        if [decoded.height, decoded.width] != expected {
            let [height, width] = expected;
            let reason = format!("{}x{} pixels came out, expected {height}x{width}", decoded.height, decoded.width);
            return Err(Error::format(&path, reason));
        }
        Ok(Decoded { path, image: decoded, orientation: header.orientation, size, damage })
    }
}

/// An image, and the damage that was repaired to read it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DecodedImage {
    /// The image.
    pub image: Image,
    /// The damage, as half a sentence about the file; none for an image in order.
    pub damage: Option<&'static str>,
}

/// A part of an image as it is stored, perhaps at a fraction of its size.
pub(crate) struct Decoded {
    path: PathBuf,
    image: Image,
    orientation: Orientation,
    /// Rows and columns of the stored image.
    size: [usize; 2],
    /// The damage that was repaired.
    pub(crate) damage: Option<&'static str>,
}

impl Decoded {
    /// The second half of [`ImageFile::decode`]: resizes, turns upright, and mirrors if planned.
    ///
    /// # Errors
    /// [`Error::Resize`].
    pub(crate) fn finish(self, plan: &DecodePlan) -> Result<Image, Error> {
        let Self { path, image, orientation, size, .. } = self;
        let area = orientation.stored_area(&plan.view.area, size);
        let target = orientation.size([plan.view.height, plan.view.width]);
        let resized = resample::crop_resize(image, &within(&area, &plan.part, plan.path.factor()), target);
        let resized = resized.map_err(|reason| Error::Resize { path, reason })?;
        let turn = if plan.view.flip { orientation.then_mirror() } else { orientation };
        let upright = turn.apply(resized);
        Ok(if upright.channels == plan.channels { upright } else { gray_as_rgb(upright) })
    }
}

fn gray_as_rgb(gray: Image) -> Image {
    let mut pixels = Vec::with_capacity(3 * gray.pixels.len());
    pixels.extend(gray.pixels.iter().flat_map(|sample| [*sample; 3]));
    Image { pixels, channels: 3, ..gray }
}
