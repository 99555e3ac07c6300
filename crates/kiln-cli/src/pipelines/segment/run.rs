//! A run of a segmentation from its settings.

use anyhow::Result;
use burn::tensor::Device;
use kiln_data::{TileSet, printable};
use kiln_report::counted;
use kiln_training::{Error, InitialValues, Passes};

use super::data::{TileSets, loaders, test_loader};
use super::picture::Pictures;
use super::score::Scores;
use super::settings::SegmentSettings;
use super::source::SegmentData;
use super::task::{Segment, segment};
use crate::device;
use crate::pipelines::run::{Finder, Findings, Run, Setup};
use crate::usage::Usage;

/// The run of the settings on `tiles` of `data`, and its device.
///
/// # Errors
/// Those of the device, the data and the settings; [`Usage`] when the images do not fit the model.
pub fn run(mut settings: SegmentSettings, data: &SegmentData, tiles: TileSets) -> Result<(Run<Segment>, Device)> {
    check(&settings, data, &tiles)?;
    settings.run.fit_batch(tiles.train.len())?;
    let device = device::open(&settings.run.device)?;
    let task = segment(&settings, Some(tiles.test.clone()))?;
    let findings = findings(&settings, tiles.test.clone(), data.classes.clone());
    let (model, loaders) = (settings.model.clone(), loaders(&tiles, &settings)?);
    let (classes, left_out) = (data.classes.clone(), tiles.left_out);
    let setup = Setup { classes, left_out, ..Setup::new("unet", loaders, settings) };
    Ok((Run::new(task, move |device| model.init(device), InitialValues::default(), findings, setup), device))
}

/// Fails if the configuration contradicts the data, and for tiles that the model cannot take.
fn check(settings: &SegmentSettings, data: &SegmentData, tiles: &TileSets) -> Result<()> {
    let (model, side) = (&settings.model, settings.data.tiles.size);
    check_images(settings, &tiles.train)?;
    check_images(settings, &tiles.test)?;
    if model.classes != data.classes.len() {
        let (classes, expected) = (model.classes, data.classes.len());
        return Err(Usage(format!("model.classes is {classes}, expected {expected} as in the data set")).into());
    }
    model.check_input([side; 2]).map_err(|_| Usage(format!("--tile is {side}, expected a multiple of 32")).into())
}

/// Fails for images whose bands or samples differ from those of the settings.
///
/// # Errors
/// [`Usage`] with the first image.
pub fn check_images(settings: &SegmentSettings, set: &TileSet) -> Result<()> {
    let (path, bands, channels) = (printable(set.path(0)), set.bands(), settings.model.channels);
    if bands != channels {
        return Err(
            Usage(format!("'{path}' has {}, expected {channels} as model.channels", counted(bands, "band"))).into()
        );
    }
    let samples = |eight| if eight { "samples of 8 bits" } else { "samples that are not of 8 bits" };
    let [has, expected] = [set.is_eight_bit(), settings.data.tiles.eight_bit].map(samples);
    match has == expected {
        true => Ok(()),
        false => Err(Usage(format!("'{path}' has {has}, expected {expected}, as the images of the run")).into()),
    }
}

/// IoU of each class on `test`, and pictures.
fn findings(settings: &SegmentSettings, test: TileSet, classes: Vec<String>) -> Finder<kiln_models::Unet> {
    let settings = settings.clone();
    Box::new(move |subject| {
        let Some(model) = subject.whole() else { return Ok(Findings::default()) };
        let task = segment(&settings, Some(test.clone()))?;
        let loader = test_loader(&test, &settings)?;
        let batches = loader.epoch(0, 0).map(|batch| batch.map_err(Error::Data));
        let mut pictures = Pictures::new(&test);
        let Scores { confusion, .. } =
            task.score(model, &test, batches, &Passes::on(subject.device), subject.at_once, |row| {
                pictures.add(&row);
                Ok(())
            })?;
        let figure = |(class, score): (&String, Option<f64>)| Some((format!("iou_{class}"), score?));
        Ok(Findings {
            figures: classes.iter().zip(confusion.iou()).filter_map(figure).collect(),
            pictures: pictures.finish(&settings.data.tiles.normalize)?,
            ..Findings::default()
        })
    })
}
