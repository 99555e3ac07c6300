//! The defaults of `train segment`, and a run from its settings.

use anyhow::Result;
use burn::tensor::Device;
use kiln_data::{BadSamples, TileSet, printable};
use kiln_models::UnetConfig;
use kiln_training::{Error, OptimizerConfig, ScheduleConfig};

use super::data::{SegmentData, Tiles, loaders, normalize, test_loader};
use super::picture::Pictures;
use super::score::Scores;
use super::task::{Segment, segment};
use crate::device;
use crate::pipelines::beginning::Beginning;
use crate::pipelines::run::{Finder, Findings, Run, Setup};
use crate::pipelines::settings::{IgnoredClass, LossSettings, RunSettings, SegmentSettings, TileSettings};
use crate::usage::Usage;
use crate::words::counted;

/// The recipe for `data`. Means and deviations are measured on the tiles `train`. For the data set in fixtures/ the network is smaller,
/// so that 2 CPU cores train it in less than four minutes.
///
/// # Errors
/// Those of reading tiles.
pub fn recipe(data: &SegmentData, train: &TileSet, is_fixture: bool, bad: BadSamples) -> Result<SegmentSettings> {
    let config = train.config();
    let model = UnetConfig::new(data.classes.len()).with_channels(train.bands());
    let (model, epochs) = match is_fixture {
        true => (model.with_width(0.25).with_decoder([64, 48, 32, 24, 16]), 18),
        false => (model, 20),
    };
    Ok(SegmentSettings {
        run: RunSettings { bad_samples: bad, ..RunSettings::new(epochs, 8) },
        tiles: TileSettings {
            size: config.tile,
            overlap: [config.overlap, config.tile / 4],
            ignore: IgnoredClass(train.classes().and_then(|classes| classes.ignore)),
            eight_bit: train.is_eight_bit(),
            normalize: normalize(train, bad)?,
        },
        loss: LossSettings { cross_entropy: 1.0, dice: 1.0, class_weights: None },
        model,
        optimizer: OptimizerConfig::adamw(),
        schedule: ScheduleConfig { peak: 2e-3, warmup: 0.1, floor: 0.0 },
    })
}

/// The run of the settings on `tiles` of `data`, and its device.
///
/// # Errors
/// Those of the device, the data and the settings; [`Usage`] when the images do not fit the model.
pub fn run(
    mut settings: SegmentSettings,
    data: &SegmentData,
    tiles: Tiles,
) -> Result<(Run<Segment, SegmentSettings>, Device)> {
    check(&settings, data, &tiles)?;
    settings.run.fit_batch(tiles.train.len())?;
    let device = device::open(&settings.run.device)?;
    let (model, beginning) = (settings.model.clone(), Beginning::of(&settings));
    let taken = beginning.taken();
    let run = Run {
        task: segment(&settings, Some(tiles.test.clone()))?,
        init: Box::new(move |device| beginning.begin(model.init(device)?, device)),
        findings: Some(findings(&settings, tiles.test.clone(), data.classes.clone())),
        setup: Setup {
            name: "unet",
            command: "segment",
            classes: data.classes.clone(),
            class_counts: None,
            notes: vec![],
            left_out: tiles.left_out.clone(),
            defaults: None,
            data: loaders(&tiles, &settings)?,
            settings,
            taken,
        },
    };
    Ok((run, device))
}

/// Fails if the configuration contradicts the data, and for tiles that the model cannot take.
fn check(settings: &SegmentSettings, data: &SegmentData, tiles: &Tiles) -> Result<()> {
    let (model, side) = (&settings.model, settings.tiles.size);
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
    let [has, expected] = [set.is_eight_bit(), settings.tiles.eight_bit].map(samples);
    match has == expected {
        true => Ok(()),
        false => Err(Usage(format!("'{path}' has {has}, expected {expected}, as the images of the run")).into()),
    }
}

/// IoU of each class on `test`, and pictures.
fn findings(settings: &SegmentSettings, test: TileSet, classes: Vec<String>) -> Finder<kiln_models::Unet> {
    let settings = settings.clone();
    Box::new(move |model, device, tiles| {
        let task = segment(&settings, Some(test.clone()))?;
        let loader = test_loader(&test, &settings)?;
        let batches = loader.epoch(0, 0).map(|batch| batch.map_err(Error::Data));
        let mut pictures = Pictures::new(&test);
        let Scores { confusion, .. } = task.score(model, &test, batches, device, tiles, |row| {
            pictures.add(&row);
            Ok(())
        })?;
        let figure = |(class, score): (&String, Option<f64>)| Some((format!("iou_{class}"), score?));
        Ok(Findings {
            figures: classes.iter().zip(confusion.iou()).filter_map(figure).collect(),
            pictures: pictures.finish(&settings.tiles.normalize)?,
            ..Findings::default()
        })
    })
}
