//! One image of a tile set and its mask, read tile by tile.

use std::io::{self, ErrorKind};
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::decode::{Format, ImageFile, Orientation, Raster, SampleType, Samples};
use crate::error::Error;
use crate::printable::printable;

use super::class_ids::Classes;
use super::grid::TileArea;

/// One image of a set and its mask: the facts of their headers, without pixels.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) image: PathBuf,
    mask: Option<PathBuf>,
    pub(super) facts: Facts,
    /// Bytes that reading a tile takes at its peak.
    pub(super) bytes: u64,
}

/// The facts that decide the tiles of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    /// `[height, width]` as stored.
    pub(super) size: [usize; 2],
    pub(super) bands: usize,
    pub(super) sample_type: SampleType,
    orientation: Orientation,
}

/// The part of a tile that is in its image, as it is stored.
pub(super) struct Patch {
    /// `[height, width, bands]`.
    pub(super) samples: Samples,
    /// `[height, width]`.
    pub(super) ids: Option<Samples>,
    pub(super) height: usize,
    pub(super) width: usize,
}

impl Source {
    /// Reads the headers of an image and its mask, for tiles of `tile` pixels a side, each read within `limit` bytes.
    pub(super) fn open(image: &Path, mask: Option<&Path>, tile: usize, limit: u64) -> Result<Self, Error> {
        let (raster, facts) = open(image, limit)?;
        let [height, width] = facts.size.map(|length| length.min(tile));
        let within = |path: &Path, bytes| match bytes <= limit {
            true => Ok(bytes),
            false => {
                let [height, width] = facts.size;
                Err(Error::TooLarge { path: path.to_owned(), height, width, bytes, limit })
            }
        };
        let mut bytes = within(image, raster.window_bytes(height, width))?;
        if let Some(mask) = mask {
            let sample = if facts.is_eight_bit() { 1 } else { 4 };
            // The image's samples are held while the mask is read.
            let held = (height * width * facts.bands * sample) as u64;
            let reading = open_mask(mask, image, &facts, limit)?.window_bytes(height, width);
            bytes = bytes.max(within(mask, held.saturating_add(reading))?);
        }
        Ok(Self { image: image.to_owned(), mask: mask.map(Path::to_owned), facts, bytes })
    }

    /// Reads a tile: the part of it that is in the image.
    pub(super) fn read(&self, area: &TileArea, classes: Option<&Classes>) -> Result<Patch, Error> {
        let TileArea { top, left, height, width } = *area;
        let (mut raster, facts) = open(&self.image, self.bytes)?;
        if facts != self.facts {
            return Err(Error::format(&self.image, "its size or samples changed since the set of tiles was made"));
        }
        let samples = raster.window(top, left, height, width)?.samples;
        drop(raster);
        let ids = match (&self.mask, classes) {
            (Some(mask), Some(classes)) => {
                let ids = open_mask(mask, &self.image, &facts, self.bytes)?.window(top, left, height, width)?.samples;
                classes.check_ids(&ids, mask, [top, left], width)?;
                Some(ids)
            }
            _ => None,
        };
        Ok(Patch { samples, ids, height, width })
    }

    /// Whole rows of the mask, `[rows, width]`.
    pub(super) fn mask_rows(
        &self,
        rows: Range<usize>,
        classes: &Classes,
        limit: u64,
    ) -> Result<Option<Samples>, Error> {
        let Some(mask) = &self.mask else { return Ok(None) };
        let width = self.facts.size[1];
        let mut raster = open_mask(mask, &self.image, &self.facts, limit)?;
        let ids = raster.window(rows.start, 0, rows.len(), width)?.samples;
        classes.check_ids(&ids, mask, [rows.start, 0], width)?;
        Ok(Some(ids))
    }
}

impl Facts {
    pub(super) fn is_eight_bit(&self) -> bool {
        self.sample_type == SampleType::U8
    }
}

fn open(path: &Path, limit: u64) -> Result<(Raster, Facts), Error> {
    let file = ImageFile::open(path)?;
    let orientation = file.header().orientation;
    let raster = Raster::new(file, limit)?;
    let (size, bands, sample_type) = ([raster.height(), raster.width()], raster.bands(), raster.sample_type());
    Ok((raster, Facts { size, bands, sample_type, orientation }))
}

/// Opens a mask. Its format must return the samples as they are stored, which not every format does.
fn open_mask(path: &Path, image: &Path, facts: &Facts, limit: u64) -> Result<Raster, Error> {
    let refuse = |reason: String| Err(Error::format(path, format!("a mask of {reason}")));
    let file = ImageFile::open(path).map_err(|error| match error {
        Error::Read { reason, .. } if reason.kind() == ErrorKind::NotFound => Error::read(
            path,
            io::Error::new(ErrorKind::NotFound, format!("the mask of '{}' is missing", printable(image))),
        ),
        other => other,
    })?;
    let (format, bits, orientation) = (file.header().format, file.header().bits, file.header().orientation);
    let raster = Raster::new(file, limit)?;
    let ([height, width], image) = ([raster.height(), raster.width()], printable(image));
    if [height, width] != facts.size {
        return refuse(format!("{height}x{width} pixels, expected {}x{} as '{image}'", facts.size[0], facts.size[1]));
    }
    if orientation != facts.orientation {
        return refuse(format!("another orientation than '{image}', expected the same: pixels are taken as stored"));
    }
    if raster.bands() != 1 {
        return refuse(format!(
            "{} bands, expected one of class ids (a palette is read as its colours)",
            raster.bands()
        ));
    }
    match (format, raster.sample_type(), bits) {
        (Format::Tiff, SampleType::U8 | SampleType::U16, _) | (Format::Png, SampleType::U8, 8) => Ok(raster),
        (Format::Png, SampleType::U16, 16) => Ok(raster),
        (Format::Tiff | Format::Png, kind, bits) => refuse(format!(
            "{bits} bits read as {kind:?}, expected class ids of 8 or 16 bits (in a PNG neither fewer nor interlaced 16)"
        )),
        (other, ..) => refuse(format!("the format {other:?}, expected TIFF or PNG, which keep class ids as they are")),
    }
}
