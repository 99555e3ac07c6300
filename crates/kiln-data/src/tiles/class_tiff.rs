//! Writes the classes of an image's pixels as a tiled TIFF, row by row.

use std::fs::File;
use std::io::{BufReader, BufWriter, Seek, Write};
use std::path::Path;

use ::tiff::TiffError;
use ::tiff::decoder::Decoder;
use ::tiff::encoder::{DirectoryEncoder, TiffEncoder, TiffKind, TiffKindBig, TiffKindStandard};
use ::tiff::tags::{ByteOrder, CompressionMethod, PhotometricInterpretation, SampleFormat, Tag, Type, ValueBuffer};
use flate2::Compression;
use flate2::write::ZlibEncoder;

use crate::error::Error;
use crate::files::{partial, publish};

/// Rows and columns of a tile in the file.
const TILE: usize = 256;
/// Files that may be larger than 2^32 bytes are BigTIFF. Deflate adds a few bytes to what it cannot compress.
const MOST_STANDARD: u64 = 4_000_000_000;
/// The tags that say where on Earth the pixels are (OGC GeoTIFF 1.1).
const GEOREFERENCE: [Tag; 6] = [
    Tag::ModelPixelScaleTag,
    Tag::ModelTransformationTag,
    Tag::ModelTiepointTag,
    Tag::GeoKeyDirectoryTag,
    Tag::GeoDoubleParamsTag,
    Tag::GeoAsciiParamsTag,
];

/// Takes the class ids of an image, row by row from the top, and holds one row of tiles. See [`write_classes`].
pub struct ClassRows<'a> {
    tiles: &'a mut dyn FnMut(&[u8]) -> Result<(), TiffError>,
    path: &'a Path,
    size: [usize; 2],
    /// Bytes of an id: 1 or 2.
    bytes: usize,
    /// Rows that were taken.
    rows: usize,
    /// Up to [`TILE`] rows, padded with zeros to whole tiles.
    held: Vec<u8>,
    tile: Vec<u8>,
    classes: usize,
}

/// Writes the classes of the pixels of an image of `size`, `[height, width]`, to `path`, as TIFF in tiles of 256 pixels, compressed with
/// Deflate: bytes for up to 256 classes, 16 bits for more. `fill` passes all rows to [`ClassRows::row`]. Memory holds one row of tiles,
/// whatever the height of the image.
///
/// If `like` is a GeoTIFF, the tags that say where the image lies are copied from it. An older file is replaced when the new one is
/// complete. Until then, and after an error, the older file stays.
///
/// ```
/// use kiln_data::{Raster, Samples, write_classes};
///
/// # let directory = tempfile::tempdir()?;
/// let path = directory.path().join("classes.tif");
/// write_classes::<kiln_data::Error>(&path, [300, 500], 7, None, |rows| {
///     (0..300).try_for_each(|y| rows.row(&[y % 7; 500]))
/// })?;
/// let window = Raster::open(&path, 1 << 20)?.window(299, 0, 1, 2)?;
/// assert_eq!(window.samples, Samples::U8(vec![5, 5]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Error::Write`] when the file cannot be written, [`Error::InvalidSetting`] for rows of another length, too many or too few of them, and
/// ids that are no class, [`Error::Format`] when the tags of `like` cannot be read, and those of `fill`.
pub fn write_classes<E: From<Error>>(
    path: impl AsRef<Path>,
    size: [usize; 2],
    classes: usize,
    like: Option<&Path>,
    fill: impl FnOnce(&mut ClassRows<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let path = path.as_ref();
    let tags = like.map_or(Ok(vec![]), georeference)?;
    let mut file = partial(path)?;
    let image = Image { path, size, bytes: if classes <= 256 { 1 } else { 2 }, tags };
    let most = (size[0].next_multiple_of(TILE) as u64).saturating_mul(size[1].next_multiple_of(TILE) as u64);
    let mut target = BufWriter::new(file.as_file_mut());
    match most.saturating_mul(image.bytes as u64) < MOST_STANDARD {
        true => image.write::<TiffKindStandard, _>(&mut target, classes, fill),
        false => image.write::<TiffKindBig, _>(&mut target, classes, fill),
    }?;
    target.flush().map_err(|e| Error::write(path, e))?;
    drop(target);
    Ok(publish(file, path)?)
}

fn encode_error(path: &Path, error: TiffError) -> Error {
    match error {
        TiffError::IoError(reason) => Error::write(path, reason),
        other => Error::write(path, std::io::Error::other(other.to_string())),
    }
}

/// The tags of a GeoTIFF that say where it lies; none for other files.
fn georeference(path: &Path) -> Result<Vec<(Tag, ValueBuffer)>, Error> {
    let file = File::open(path).map_err(|e| Error::read(path, e))?;
    let Ok(mut decoder) = Decoder::new(BufReader::new(file)) else { return Ok(vec![]) };
    let mut tags = vec![];
    for tag in GEOREFERENCE {
        let mut value = ValueBuffer::empty(Type::BYTE);
        let found = decoder.image_ifd().find_tag_buf(tag, &mut value);
        if found.map_err(|e| Error::format(path, format!("tag {}: {e}", tag.to_u16())))?.is_some() {
            value.set_byte_order(ByteOrder::native());
            tags.push((tag, value));
        }
    }
    Ok(tags)
}

/// The image that is written.
struct Image<'a> {
    path: &'a Path,
    size: [usize; 2],
    /// Bytes of an id.
    bytes: usize,
    tags: Vec<(Tag, ValueBuffer)>,
}

impl Image<'_> {
    fn write<K: TiffKind, E: From<Error>>(
        self,
        target: impl Write + Seek,
        classes: usize,
        fill: impl FnOnce(&mut ClassRows<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let fail = |error| encode_error(self.path, error);
        let mut encoder = TiffEncoder::<_, K>::new_generic(target).map_err(fail)?;
        let mut directory = encoder.image_directory().map_err(fail)?;
        let (mut offsets, mut lengths) = (vec![], vec![]);
        let mut add = |tile: &[u8]| {
            let mut packed = ZlibEncoder::new(vec![], Compression::default());
            packed.write_all(tile)?;
            let packed = packed.finish()?;
            offsets.push(K::convert_offset(directory.write_data(packed.as_slice())?)?);
            lengths.push(K::convert_offset(packed.len() as u64)?);
            Ok(())
        };
        let [height, width] = self.size;
        let mut rows = ClassRows {
            tiles: &mut add,
            path: self.path,
            size: self.size,
            bytes: self.bytes,
            rows: 0,
            held: vec![0; TILE * width.next_multiple_of(TILE) * self.bytes],
            tile: vec![0; TILE * TILE * self.bytes],
            classes,
        };
        fill(&mut rows)?;
        if rows.rows != height {
            let value = rows.rows.to_string();
            return Err(Error::InvalidSetting { name: "rows", value, expected: "as many as the image has" }.into());
        }
        self.describe(&mut directory, &offsets, &lengths).map_err(fail)?;
        directory.finish().map_err(fail)?;
        Ok(())
    }

    fn describe<W: Write + Seek, K: TiffKind>(
        &self,
        directory: &mut DirectoryEncoder<'_, W, K>,
        offsets: &[K::OffsetType],
        lengths: &[K::OffsetType],
    ) -> Result<(), TiffError> {
        let [height, width] = self.size.map(u32::try_from);
        directory.write_tag(Tag::ImageWidth, width?)?;
        directory.write_tag(Tag::ImageLength, height?)?;
        directory.write_tag(Tag::BitsPerSample, 8 * self.bytes as u16)?;
        directory.write_tag(Tag::Compression, CompressionMethod::Deflate.to_u16())?;
        directory.write_tag(Tag::PhotometricInterpretation, PhotometricInterpretation::BlackIsZero.to_u16())?;
        directory.write_tag(Tag::SamplesPerPixel, 1u16)?;
        directory.write_tag(Tag::SampleFormat, SampleFormat::Uint.to_u16())?;
        directory.write_tag(Tag::TileWidth, TILE as u32)?;
        directory.write_tag(Tag::TileLength, TILE as u32)?;
        directory.write_tag(Tag::TileOffsets, K::convert_slice(offsets))?;
        directory.write_tag(Tag::TileByteCounts, K::convert_slice(lengths))?;
        self.tags.iter().try_for_each(|(tag, value)| directory.write_tag_buf(*tag, value))
    }
}

impl ClassRows<'_> {
    /// Takes the next row: the class of each of its pixels.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for another number of pixels than the image is wide, more rows than it has, and an id that is no class;
    /// [`Error::Write`] when the file cannot be written.
    pub fn row(&mut self, ids: &[u16]) -> Result<(), Error> {
        let [height, width] = self.size;
        let refuse = |field, value: String, expected| Err(Error::setting(field, value, expected));
        if self.rows == height {
            return refuse("rows", format!("more than {height}"), "as many as the image has");
        }
        if ids.len() != width {
            return refuse("pixels of a row", ids.len().to_string(), "as many as the image is wide");
        }
        if let Some(id) = ids.iter().find(|id| usize::from(**id) >= self.classes) {
            return refuse("class", id.to_string(), "one below the number of classes");
        }
        let stride = width.next_multiple_of(TILE) * self.bytes;
        let row = &mut self.held[self.rows % TILE * stride..][..width * self.bytes];
        match self.bytes {
            1 => row.iter_mut().zip(ids).for_each(|(byte, id)| *byte = *id as u8),
            _ => row.as_chunks_mut::<2>().0.iter_mut().zip(ids).for_each(|(bytes, id)| *bytes = id.to_ne_bytes()),
        }
        self.rows += 1;
        match self.rows.is_multiple_of(TILE) || self.rows == height {
            true => self.end_of_tiles().map_err(|error| encode_error(self.path, error)),
            false => Ok(()),
        }
    }

    /// Writes the row of tiles that is held.
    fn end_of_tiles(&mut self) -> Result<(), TiffError> {
        let across = TILE * self.bytes;
        let stride = self.size[1].next_multiple_of(TILE) * self.bytes;
        for left in (0..stride).step_by(across) {
            for (y, row) in self.tile.chunks_exact_mut(across).enumerate() {
                row.copy_from_slice(&self.held[y * stride + left..][..across]);
            }
            (self.tiles)(&self.tile)?;
        }
        self.held.fill(0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{Raster, Samples};

    /// Ids of 300 x 520 pixels in both kinds of TIFF and both widths of an id.
    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("classes.tif");
        let [height, width] = [300, 520];
        for (classes, bytes) in [(200, 1), (60_000, 2)] {
            let id = |y: usize, x: usize| (y * 7919 + x * 31) % classes;
            let fill = |rows: &mut ClassRows<'_>| {
                (0..height).try_for_each(|y| rows.row(&(0..width).map(|x| id(y, x) as u16).collect::<Vec<_>>()))
            };
            for big in [false, true] {
                let image = Image { path: &path, size: [height, width], bytes, tags: vec![] };
                let file = File::create(&path).unwrap();
                let written: Result<(), Error> = match big {
                    false => image.write::<TiffKindStandard, _>(file, classes, fill),
                    true => image.write::<TiffKindBig, _>(file, classes, fill),
                };
                written.unwrap();
                let window = Raster::open(&path, 1 << 24).unwrap().window(0, 0, height, width).unwrap();
                let expected = (0..height).flat_map(|y| (0..width).map(move |x| id(y, x)));
                match window.samples {
                    Samples::U8(ids) => assert!(ids.into_iter().map(usize::from).eq(expected)),
                    Samples::F32(ids) => assert!(ids.into_iter().map(|id| id as usize).eq(expected)),
                }
            }
        }
    }

    #[test]
    fn an_error_leaves_the_older_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("classes.tif");
        std::fs::write(&path, "older").unwrap();
        let write = |rows: usize, row: &[u16]| {
            write_classes::<Error>(&path, [2, 3], 4, None, |out| (0..rows).try_for_each(|_| out.row(row)))
        };
        for (rows, row, text) in [
            (1, &[0; 3][..], "rows is 1, expected as many as the image has"),
            (3, &[0; 3], "rows is more than 2, expected as many as the image has"),
            (2, &[0; 4], "pixels of a row is 4, expected as many as the image is wide"),
            (2, &[0, 4, 0], "class is 4, expected one below the number of classes"),
        ] {
            assert_eq!(write(rows, row).unwrap_err().to_string(), text);
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"older");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
        write(2, &[0, 3, 1]).unwrap();
        assert_eq!(Raster::open(&path, 1 << 24).unwrap().width(), 3);
    }
}
