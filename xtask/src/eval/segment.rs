//! `cargo xtask eval segment`: scores of whole images, and their classes written as TIFF.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use benches::device;
use benches::output::print_json;
use benches::pipelines::{Scores, Segment, SegmentSettings, largest_class, open_segments, segment, segment_tiles};
use benches::usage::Usage;
use burn::tensor::Device;
use indicatif::{ProgressBar, ProgressStyle};
use kiln_data::{TileBatch, TileConfig, TileSet, write_classes};
use kiln_models::Unet;
use kiln_training::{Error, Predicted};
use serde_json::{Map, Value, json};

use super::checkpoint::{apply, around, settings};
use crate::cli::EvalSegment;
use crate::train::load_any;
use crate::train::prepare::check_classes;

/// A model and what it is used with.
struct Predictor {
    task: Segment,
    model: Unet,
    device: Device,
    settings: SegmentSettings,
}

pub(super) fn run(arguments: &EvalSegment) -> Result<ExitCode> {
    let eval = &arguments.eval;
    let mut settings: SegmentSettings = settings(eval)?;
    apply(eval, &mut settings.run);
    let tiles = &mut settings.tiles;
    if let Some(size) = arguments.tile {
        (tiles.size, tiles.overlap) = (size as usize, [0, size as usize / 4]);
    }
    if let Some(overlap) = arguments.overlap {
        tiles.overlap[1] = overlap as usize;
    }
    let side = tiles.size;
    settings.model.check_input([side; 2]).map_err(|_| Usage(format!("--tile is {side}, expected a multiple of 32")))?;
    let device = device::open(&settings.run.device)?;
    let model = load_any(settings.model.init(&device)?, &eval.checkpoint)?;
    kiln_precision::check_device(&device, settings.run.precision)?;
    let model = settings.run.policy().autocast(model)?;
    let predictor = Predictor { task: segment(&settings, None)?, model, device, settings };

    let (started, mut results) = (Instant::now(), Map::new());
    let mut images = arguments.image.clone();
    if images.is_empty() {
        let settings = &predictor.settings;
        let data = open_segments(settings.run.data.as_deref(), Some(settings.model.classes))?;
        if let Some(run) = around(&eval.checkpoint).as_deref().and_then(Path::parent) {
            check_classes(run, &data.classes)?;
        }
        let [overlap, of_test] = settings.tiles.overlap;
        let sizes = [settings.tiles.size, overlap, of_test];
        let test = segment_tiles(&data, sizes, settings.tiles.ignore, settings.run.bad_samples)?.test;
        images = (0..test.images()).map(|image| test.path(image).to_owned()).collect();
        results = predictor.score(&test, &data.classes)?;
    }
    if let Some(folder) = &arguments.predict {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make '{}'", folder.display()))?;
        let written = images.iter().map(|image| predictor.write(image, folder)).collect::<Result<Vec<_>>>()?;
        results.insert("predictions".into(), json!(written));
    }
    results.insert("seconds".into(), json!(started.elapsed().as_secs_f64()));
    if eval.json {
        print_json(&Value::Object(results))?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Predictor {
    /// Tiles on the device at once.
    fn at_once(&self) -> usize {
        let run = &self.settings.run;
        run.micro_batch.unwrap_or(run.batch_size)
    }

    /// The tiles of `set` in order.
    fn batches(&self, set: &TileSet) -> Result<impl Iterator<Item = Result<TileBatch, Error>> + use<>> {
        let loader = TileBatch::loader(set.clone(), None, self.settings.run.loader(set.len()))?;
        Ok(loader.epoch(0, 0).map(|batch| batch.map_err(Error::Data)))
    }

    /// Scores on images with masks.
    fn score(&self, test: &TileSet, classes: &[String]) -> Result<Map<String, Value>> {
        let batches = self.batches(test)?;
        let scores = self.task.score(&self.model, test, batches, &self.device, self.at_once(), |_| Ok(()))?;
        let Scores { confusion, cross_entropy } = scores;
        let mut figures = vec![
            ("test_miou".to_owned(), confusion.mean_iou()),
            ("test_accuracy".to_owned(), confusion.accuracy()),
            ("test_loss".to_owned(), cross_entropy),
        ];
        let of_class = classes.iter().zip(confusion.iou());
        figures.extend(of_class.filter_map(|(class, score)| Some((format!("iou_{class}"), score?))));
        figures.iter().for_each(|(name, value)| tracing::info!("{name} {value:.4}"));
        Ok(figures.into_iter().map(|(name, value)| (name, json!(value))).collect())
    }

    /// Writes the classes of an image of any size, and returns the file.
    fn write(&self, image: &Path, folder: &Path) -> Result<PathBuf> {
        let tiles = &self.settings.tiles;
        let set = TileSet::new([image], TileConfig::new(tiles.size).with_overlap(tiles.overlap[1]))?;
        let (bands, channels) = (set.bands(), self.settings.model.channels);
        if bands != channels {
            return Err(
                Usage(format!("'{}' has {bands} bands, expected {channels} as the model", image.display())).into()
            );
        }
        let path = folder.join(image.file_stem().unwrap_or_default()).with_added_extension("tif");
        if path.exists() && path.canonicalize()? == image.canonicalize()? {
            return Err(Usage(format!("'{}' is the image itself, expected another --predict", path.display())).into());
        }
        let (size, classes) = (set.grid(0).size(), self.settings.model.classes);
        let bar = ProgressBar::new(size[0] as u64);
        bar.set_style(ProgressStyle::with_template("{bar:30} row {pos}/{len}  ETA {eta}")?);
        let mut ids = vec![];
        write_classes(&path, size, classes, Some(image), |rows| -> Result<()> {
            let batches = self.batches(&set)?;
            self.task.predict(&self.model, &set, batches, &self.device, self.at_once(), |event| {
                if let Predicted::Row { values, .. } = event {
                    largest_class(values, classes, &mut ids);
                    rows.row(&ids)?;
                    bar.inc(1);
                }
                Ok(())
            })?;
            Ok(())
        })?;
        bar.finish_and_clear();
        tracing::info!("{}", path.display());
        Ok(path)
    }
}
