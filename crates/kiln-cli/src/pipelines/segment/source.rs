//! A data set of images with masks, and statistics measured on some of its tiles.

use std::path::Path;

use anyhow::Result;
use kiln_data::{
    BadSamples, ClassIds, LoaderConfig, MaskedImages, Normalize, Order, Samples, TileBatch, TileSet, TrainTest,
    open_masked_images,
};

use crate::fixtures;
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
pub(super) fn measured_normalization(set: &TileSet, bad: BadSamples) -> Result<Normalize> {
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
pub fn balanced_class_weights(set: &TileSet, bad: BadSamples) -> Result<Vec<f32>> {
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
