//! The tiles of several large images, with or without masks.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::decode::Samples;
use crate::error::Error;
use crate::loader::{BadSample, BadSamples, BatchPlan, Worker};
use crate::printable::printable;

use super::class_ids::{ClassIds, Classes};
use super::grid::{TileArea, TileConfig, TileGrid};
use super::source::{Patch, Source};

/// The position of a tile of a [`TileSet`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TilePlace {
    /// The image, counted from zero.
    pub image: usize,
    /// The tile of the image's [`TileGrid`].
    pub tile: usize,
    /// The part of the image in the tile.
    pub area: TileArea,
}

/// Tiles of one or several large images, with or without a mask of class ids for each. Tiles have consecutive ids, those
/// of an image in the order of its [`TileGrid`].
///
/// Images may have any format that a [`Raster`](crate::Raster) reads. All have the same number of bands, and either all of them or none
/// have 8-bit samples. A file is opened for every tile. Of a TIFF only the strips or tiles that touch it are decoded, a PNG is decoded down
/// to the tile's last row, and other formats whole. **Convert large images of other formats to tiled TIFF once.** Pixels keep the order in
/// which they are stored; an orientation tag is ignored.
///
/// A mask has its image's size and one band: a TIFF of unsigned samples of at most 16 bits, or a gray PNG of 8 or 16 bits.
///
/// ```
/// use burn::tensor::Device;
/// use kiln_data::{
///     Blend, Classes, LoaderConfig, Normalize, Order, Stitch, TileBatch, TileConfig, TileSet,
/// };
///
/// # let fixtures = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/geotiff"));
/// # let directory = tempfile::tempdir()?;
/// let scene = fixtures.join("elevation.tif"); // 187x152 pixels, one band of 16 bits
/// let mask = directory.path().join("mask.png");
/// image::GrayImage::from_fn(152, 187, |x, _| image::Luma([if x < 20 { 255 } else { (x / 80) as u8 }])).save(&mask)?;
///
/// // To train: pairs of image and mask, in random order, turned and mirrored at random.
/// let classes = Classes::new(2).with_ignore(255);
/// let config = TileConfig::new(64).with_overlap(16);
/// let set = TileSet::with_masks([(&scene, &mask)], classes, config)?;
/// let loading = LoaderConfig::new(4).with_order(Order::Shuffled { seed: 7 });
/// let loader = TileBatch::loader(set, Some(7), loading)?;
/// let (device, normalize) = (Device::flex(), Normalize { mean: vec![3119.5], std: vec![300.0] });
/// for batch in loader.epoch(0, 0).take(1) {
///     let tiles = batch?.to_device(&normalize, &device)?;
///     assert_eq!(tiles.images.dims(), [4, 1, 64, 64]);
///     assert_eq!(tiles.masks.map(|masks| masks.dims()), Some([4, 64, 64]));
///     assert_eq!(tiles.weights.dims(), [4, 64, 64]); // 0 for ignored pixels and padding
/// }
///
/// // To predict: the tiles of the image in order; the closure writes the rows, for example to a file.
/// let set = TileSet::new([&scene], config)?;
/// let mut classified: Vec<Vec<u8>> = vec![];
/// let row = |_y: usize, row: &[f32]| {
///     let (ground, peak) = row.split_at(row.len() / 2); // [classes, width]
///     classified.push(ground.iter().zip(peak).map(|(ground, peak)| u8::from(peak > ground)).collect());
///     Ok(())
/// };
/// let mut stitch = Stitch::new(*set.grid(0), 2, Blend::RaisedCosine, row)?;
/// let loader = TileBatch::loader(set, None, LoaderConfig::new(4))?;
/// for batch in loader.epoch(0, 0) {
///     let batch = batch?;
///     let images = batch.to_device(&normalize, &device)?.images;
///     let logits = images.repeat(&[1, 2, 1, 1]); // the output of a model: [4, classes, 64, 64]
///     stitch.add_batch(&batch.ids, logits)?;
/// }
/// stitch.finish()?;
/// assert_eq!((classified.len(), classified[0].len()), (187, 152));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct TileSet {
    sources: Arc<[Source]>,
    grids: Arc<[TileGrid]>,
    /// The id of every image's first tile, and then the number of tiles.
    firsts: Arc<[usize]>,
    classes: Option<Classes>,
    config: TileConfig,
}

impl TileSet {
    /// Tiles of `images` without masks. Only the headers are read.
    ///
    /// # Errors
    /// [`Error::Read`] and [`Error::Format`] for a file that is missing, is no image, or has other bands or samples than the
    /// first; [`Error::TooLarge`] when reading a tile takes more than the limit; [`Error::InvalidSetting`] for no images;
    /// those of [`TileGrid::new`].
    pub fn new(images: impl IntoIterator<Item = impl AsRef<Path>>, config: TileConfig) -> Result<Self, Error> {
        let pairs = images.into_iter().map(|image| (image, None::<&Path>));
        Ok(Self::open(pairs, None, config, BadSamples::FAIL)?.0)
    }

    /// Tiles of images, each with its mask. Only the headers are read.
    ///
    /// # Errors
    /// Those of [`new`](Self::new); [`Error::Format`] for a mask of another size than its image or with samples
    /// that cannot be class ids; [`Error::InvalidSetting`] for classes that are not 1 to 65536. The ids are checked when a
    /// tile is read.
    pub fn with_masks(
        pairs: impl IntoIterator<Item = (impl AsRef<Path>, impl AsRef<Path>)>,
        classes: Classes,
        config: TileConfig,
    ) -> Result<Self, Error> {
        Ok(Self::with_readable_masks(pairs, classes, config, BadSamples::FAIL)?.0)
    }

    /// [`with_masks`](Self::with_masks) that leaves out pairs whose image or mask cannot be used, and returns their errors beside the set.
    /// `bad` says how many may be left out: [`BadSamples::FAIL`] allows none. To substitute a pair is to leave it out.
    ///
    /// # Errors
    /// Those of [`with_masks`](Self::with_masks), and [`Error::TooManyBadSamples`].
    pub fn with_readable_masks(
        pairs: impl IntoIterator<Item = (impl AsRef<Path>, impl AsRef<Path>)>,
        classes: Classes,
        config: TileConfig,
        bad: BadSamples,
    ) -> Result<(Self, Vec<Error>), Error> {
        classes.check()?;
        Self::open(pairs.into_iter().map(|(image, mask)| (image, Some(mask))), Some(classes), config, bad)
    }

    fn open(
        pairs: impl Iterator<Item = (impl AsRef<Path>, Option<impl AsRef<Path>>)>,
        classes: Option<Classes>,
        config: TileConfig,
        bad: BadSamples,
    ) -> Result<(Self, Vec<Error>), Error> {
        let TileConfig { tile, overlap, limit } = config;
        TileGrid::new([1, 1], tile, overlap)?;
        let (mut sources, mut grids, mut firsts, mut left_out) = (Vec::<Source>::new(), vec![], vec![0], vec![]);
        for (image, mask) in pairs {
            let source = Source::open(image.as_ref(), mask.as_ref().map(AsRef::as_ref), tile, limit);
            let source = match source.and_then(|source| alike(sources.first(), &source).map(|()| source)) {
                Err(error) if bad.policy != BadSample::Fail && error.is_of_a_sample() => {
                    if left_out.len() == bad.at_most {
                        return Err(Error::TooManyBadSamples { at_most: bad.at_most, last: error.to_string() });
                    }
                    left_out.push(error);
                    continue;
                }
                source => source?,
            };
            let grid = TileGrid::new(source.facts.size, tile, overlap)?;
            firsts.push(firsts[firsts.len() - 1] + grid.tiles());
            sources.push(source);
            grids.push(grid);
        }
        if sources.is_empty() {
            return Err(Error::setting("images", "none", "at least one"));
        }
        Ok((Self { sources: sources.into(), grids: grids.into(), firsts: firsts.into(), classes, config }, left_out))
    }

    /// Number of tiles, at least 1.
    #[allow(clippy::len_without_is_empty, reason = "a set is never empty")]
    pub fn len(&self) -> usize {
        self.firsts[self.firsts.len() - 1]
    }

    /// Number of images.
    pub fn images(&self) -> usize {
        self.sources.len()
    }

    /// The file of image `image`, below [`images`](Self::images).
    pub fn path(&self, image: usize) -> &Path {
        &self.sources[image].image
    }

    /// The grid of image `image`, below [`images`](Self::images).
    pub fn grid(&self, image: usize) -> &TileGrid {
        &self.grids[image]
    }

    /// The ids of the tiles of image `image`, below [`images`](Self::images).
    pub fn ids(&self, image: usize) -> Range<usize> {
        self.firsts[image]..self.firsts[image + 1]
    }

    /// The position of tile `id`, found in O(log [`images`](Self::images)).
    ///
    /// # Panics
    /// When `id` is not below [`len`](Self::len).
    pub fn place(&self, id: usize) -> TilePlace {
        assert!(id < self.len(), "tile {id}, expected below {}", self.len());
        let image = self.firsts.partition_point(|first| *first <= id) - 1;
        let tile = id - self.firsts[image];
        TilePlace { image, tile, area: self.grids[image].area(tile) }
    }

    /// Samples of a pixel.
    pub fn bands(&self) -> usize {
        self.sources[0].facts.bands
    }

    /// Whether samples are read as bytes; otherwise they are floats.
    pub fn is_eight_bit(&self) -> bool {
        self.sources[0].facts.is_eight_bit()
    }

    /// The classes of its masks, if it has masks.
    pub fn classes(&self) -> Option<Classes> {
        self.classes
    }

    /// How the images are cut into tiles.
    pub fn config(&self) -> &TileConfig {
        &self.config
    }

    /// The class ids of `rows` of image `image`, below [`images`](Self::images): `[rows, width]`; none without masks.
    ///
    /// # Errors
    /// Those of a tile, and [`Error::InvalidSetting`] for rows beyond the image.
    pub fn mask_rows(&self, image: usize, rows: Range<usize>) -> Result<Option<ClassIds>, Error> {
        let Some(classes) = self.classes else { return Ok(None) };
        let ids = self.sources[image].mask_rows(rows, &classes, self.config.limit)?;
        Ok(ids.map(|ids| match (ids, classes.are_small()) {
            (Samples::U8(ids), true) => ClassIds::U8(ids),
            (Samples::U8(ids), false) => ClassIds::I64(ids.into_iter().map(i64::from).collect()),
            (Samples::F32(ids), true) => ClassIds::U8(ids.into_iter().map(|id| id as u8).collect()),
            (Samples::F32(ids), false) => ClassIds::I64(ids.into_iter().map(|id| id as i64).collect()),
        }))
    }

    /// The most bytes that reading one tile takes.
    pub(super) fn reading_bytes(&self) -> u64 {
        self.sources.iter().map(|source| source.bytes).max().unwrap_or(0)
    }

    /// Reads tile `id` when the budget of `worker` has room.
    pub(super) fn read(&self, id: usize, plan: &BatchPlan, worker: &Worker) -> Result<Patch, Error> {
        let place = self.place(id);
        let source = &self.sources[place.image];
        let limit = worker.image_limit();
        if source.bytes > limit {
            let (path, [height, width]) = (source.image.clone(), source.facts.size);
            return Err(Error::TooLarge { path, height, width, bytes: source.bytes, limit });
        }
        let read = || worker.decoding(|| source.read(&place.area, self.classes.as_ref()));
        worker.within(plan, source.bytes, read)
    }
}

/// All images of a set fit one tensor, in the same units.
fn alike(first: Option<&Source>, other: &Source) -> Result<(), Error> {
    let Some(first) = first else { return Ok(()) };
    let (a, b) = (&first.facts, &other.facts);
    if a.bands == b.bands && a.is_eight_bit() == b.is_eight_bit() {
        return Ok(());
    }
    let expected = match a.is_eight_bit() {
        true => "8-bit samples",
        false => "samples that are not of 8 bits",
    };
    let path = printable(&first.image);
    let reason = format!("{} bands of {:?}, expected {} of {expected} as '{path}'", b.bands, b.sample_type, a.bands);
    Err(Error::format(&other.image, reason))
}
