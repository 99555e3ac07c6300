//! The tiles of a data set, and their batches.

use anyhow::Result;
use kiln_data::{
    BadSample, BadSamples, Classes, Loader, MaskedImages, Order, Remainder, TileBatch, TileConfig, TileSet, TrainTest,
};

use super::settings::SegmentSettings;
use super::source::SegmentData;

/// The tiles of both parts.
pub struct TileSets {
    /// To train on.
    pub train: TileSet,
    /// To evaluate on.
    pub test: TileSet,
    /// Why images or masks were left out.
    pub left_out: Vec<String>,
}

/// The tiles of both parts. The evaluation part has the second overlap. In each part, as many unusable images or masks as `bad` allows
/// are left out, with a warning that names them.
///
/// # Errors
/// Those of [`TileSet::with_readable_masks`].
pub fn tiles(
    data: &SegmentData,
    [size, overlap, of_test]: [usize; 3],
    ignore: Option<u16>,
    bad: BadSamples,
) -> Result<TileSets> {
    let (train, mut left_out) = part(&data.images.train, data.classes.len(), [size, overlap], ignore, bad)?;
    let (test, of_test) = part(&data.images.test, data.classes.len(), [size, of_test], ignore, bad)?;
    left_out.extend(of_test);
    Ok(TileSets { train, test, left_out })
}

/// The tiles of one part, and why images or masks were left out.
///
/// # Errors
/// Those of [`TileSet::with_readable_masks`].
pub fn part(
    images: &MaskedImages,
    classes: usize,
    [size, overlap]: [usize; 2],
    ignore: Option<u16>,
    bad: BadSamples,
) -> Result<(TileSet, Vec<String>)> {
    let classes = ignore.map_or(Classes::new(classes), |id| Classes::new(classes).with_ignore(id));
    let config = TileConfig::new(size).with_overlap(overlap);
    let pairs = images.pairs.iter().map(|(image, mask)| (image, mask));
    let (set, left_out) = TileSet::with_readable_masks(pairs, classes, config, bad)?;
    let left_out: Vec<String> = left_out.iter().map(ToString::to_string).collect();
    left_out.iter().for_each(|error| tracing::warn!("left out: {error}"));
    Ok((set, left_out))
}

/// Loaders of the tiles: for training in random order, turned and mirrored; for evaluation in order.
pub(super) fn loaders(tiles: &TileSets, settings: &SegmentSettings) -> Result<TrainTest<Loader<TileBatch>>> {
    let (run, seed) = (&settings.run, settings.run.seed);
    let config = run.loader(tiles.train.len()).with_order(Order::Shuffled { seed });
    let config = config.with_remainder(Remainder::Drop);
    let train = TileBatch::loader(tiles.train.clone(), Some(seed), config)?;
    Ok(TrainTest { train, test: test_loader(&tiles.test, settings)? })
}

/// Batches of the tiles of `set` in order. Tiles that cannot be read are left out if samples may be left out or substituted.
///
/// # Errors
/// Those of the loader.
pub fn test_loader(set: &TileSet, settings: &SegmentSettings) -> Result<Loader<TileBatch>> {
    let mut bad = settings.run.bad_samples;
    if bad.policy == BadSample::Substitute {
        // A substitute in the place of a tile would be joined with the others.
        bad.policy = BadSample::Skip;
    }
    Ok(TileBatch::loader(set.clone(), None, settings.run.loader(set.len()).with_bad_samples(bad))?)
}
