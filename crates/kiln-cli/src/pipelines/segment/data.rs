//! The tiles of a data set, and statistics measured on them.

use std::path::Path;

use anyhow::Result;
use kiln_data::{
    BadSample, BadSamples, ClassIds, Classes, Loader, LoaderConfig, MaskedImages, Normalize, Order, Samples, TileBatch,
    TileConfig, TileSet, TrainTest, open_masked_images,
};

use crate::fixtures;
use crate::pipelines::settings::SegmentSettings;
use crate::usage::Usage;

/// The most tiles on which means, deviations and shares of classes are measured.
const MEASURED: usize = 256;

/// Images with masks, and the names of their classes.
pub struct SegmentData {
    /// Where images and masks are.
    pub images: TrainTest<MaskedImages>,
    /// The names of the classes.
    pub classes: Vec<String>,
}

/// Lists the data set that the settings name, or the fixture if they name none. Without a file of classes the data set has `count`
/// classes.
///
/// # Errors
/// Those of [`open_masked_images`], and [`Usage`] if the number of classes is not known, or differs from that of the file.
pub fn open(data: Option<&Path>, count: Option<usize>) -> Result<SegmentData> {
    let images = match data {
        Some(path) => open_masked_images(path)?,
        None => open_masked_images(fixtures::data_set("segmentation", "a folder with images/ and masks/")?)?,
    };
    let classes = match (images.train.classes.clone(), count) {
        (Some(names), None) => names,
        (Some(names), Some(count)) if names.len() == count => names,
        (Some(names), Some(count)) => {
            let text = format!("the number of classes is {count}, expected {} as in classes.txt", names.len());
            return Err(Usage(text).into());
        }
        (None, Some(count)) => (0..count).map(|class| class.to_string()).collect(),
        (None, None) => {
            let text = "the data set has no classes.txt, expected one with a class on each line, or --classes N";
            return Err(Usage(text.into()).into());
        }
    };
    Ok(SegmentData { images, classes })
}

/// The tiles of both parts.
pub struct Tiles {
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
) -> Result<Tiles> {
    let (train, mut left_out) = part(&data.images.train, data.classes.len(), [size, overlap], ignore, bad)?;
    let (test, of_test) = part(&data.images.test, data.classes.len(), [size, of_test], ignore, bad)?;
    left_out.extend(of_test);
    Ok(Tiles { train, test, left_out })
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
pub(super) fn loaders(tiles: &Tiles, settings: &SegmentSettings) -> Result<TrainTest<Loader<TileBatch>>> {
    let (run, seed) = (&settings.run, settings.run.seed);
    let config = run.loader(tiles.train.len()).with_order(Order::Shuffled { seed });
    let config = config.with_remainder(kiln_data::Remainder::Drop);
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

/// Some tiles, spread over the set, each as a batch of its own. Unreadable ones are skipped.
fn some(set: &TileSet, bad: BadSamples) -> Result<impl Iterator<Item = Result<TileBatch, kiln_data::Error>>> {
    let config = LoaderConfig::new(1).with_order(Order::Shuffled { seed: 0 }).with_bad_samples(bad);
    let loader = TileBatch::loader(set.clone(), None, config)?;
    let read = |batch: &Result<_, _>| !matches!(batch, Err(kiln_data::Error::NothingLeft { .. }));
    Ok(loader.epoch(0, 0).take(MEASURED).filter(read))
}

/// Mean and deviation of each band over some tiles.
///
/// # Errors
/// Those of reading the tiles.
pub(super) fn normalize(set: &TileSet, bad: BadSamples) -> Result<Normalize> {
    let (bands, mut count) = (set.bands(), 0u64);
    let mut sums = vec![[0.0f64; 2]; bands];
    for batch in some(set, bad)? {
        let batch = batch?;
        let (side, area) = (batch.shape[3], batch.valid[0]);
        let value = |at: usize| match &batch.samples {
            Samples::U8(samples) => f64::from(samples[at]) / 255.0,
            Samples::F32(samples) => f64::from(samples[at]),
            _ => 0.0,
        };
        for (band, sums) in sums.iter_mut().enumerate() {
            for y in area.top..area.top + area.height {
                let row = (band * side + y) * side;
                let values =
                    (row + area.left..row + area.left + area.width).map(value).filter(|value| value.is_finite());
                values.for_each(|value| *sums = [sums[0] + value, sums[1] + value * value]);
            }
        }
        count += (area.height * area.width) as u64;
    }
    let count = count.max(1) as f64;
    let mean: Vec<f64> = sums.iter().map(|sums| sums[0] / count).collect();
    // A band with one constant value is not scaled.
    let std = |(sums, mean): (&[f64; 2], &f64)| (sums[1] / count - mean * mean).max(0.0).sqrt();
    let std = sums.iter().zip(&mean).map(std).map(|std| if std > 1e-6 { std } else { 1.0 });
    Ok(Normalize { std: std.map(|std| std as f32).collect(), mean: mean.iter().map(|mean| *mean as f32).collect() })
}

/// Weights that give all classes an equal share in the cross-entropy: pixels / (classes x pixels of the class), over some tiles. A class
/// that does not occur has the weight 1.
///
/// # Errors
/// Those of reading the tiles.
pub fn class_weights(set: &TileSet, bad: BadSamples) -> Result<Vec<f32>> {
    let mut counts = vec![0u64; set.classes().map_or(0, |classes| classes.count)];
    let ignored = set.classes().and_then(|classes| classes.ignore).map(usize::from);
    for batch in some(set, bad)? {
        let batch = batch?;
        let (side, area) = (batch.shape[3], batch.valid[0]);
        for (pixel, id) in batch.masks.iter().flat_map(ClassIds::iter).enumerate() {
            let inside = (area.top..area.top + area.height).contains(&(pixel / side))
                && (area.left..area.left + area.width).contains(&(pixel % side));
            let id = usize::try_from(id).ok().filter(|id| inside && Some(*id) != ignored);
            if let Some(count) = id.and_then(|id| counts.get_mut(id)) {
                *count += 1;
            }
        }
    }
    let (all, classes) = (counts.iter().sum::<u64>() as f64, counts.len() as f64);
    Ok(counts.iter().map(|count| if *count > 0 { (all / (classes * *count as f64)) as f32 } else { 1.0 }).collect())
}
