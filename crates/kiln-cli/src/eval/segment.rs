//! `kiln eval segment`: scores of whole images, and their classes written as TIFF.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use crate::device;
use crate::output::print_json;
use crate::pipelines::{
    Kind, Scores, Segment, SegmentSettings, TileSettings, check_segment_images, largest_class, load_any, open_segments,
    segment, segment_part, segment_test_loader, settings_beside,
};
use crate::usage::Usage;
use anyhow::{Context, Result};
use burn::tensor::Device;
use indicatif::{ProgressBar, ProgressStyle};
use kiln_data::{BadSamples, TileBatch, TileConfig, TileSet, write_classes};
use kiln_models::Unet;
use kiln_training::{Error, Predicted};
use serde_json::{Map, Value, json};

use super::checkpoint::{apply, settings};
use crate::cli::EvalSegment;
use crate::log::RESULT;
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
    let mut settings: SegmentSettings = settings(eval, Kind::Segment)?;
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
    let (mut images, mut inputs) = (arguments.image.clone(), vec![]);
    if images.is_empty() {
        let settings = &predictor.settings;
        let data = open_segments(settings.run.data.as_deref(), Some(settings.model.classes))?;
        if let Some(run) = settings_beside(&eval.checkpoint).as_deref().and_then(Path::parent) {
            check_classes(run, &data.classes)?;
        }
        let TileSettings { size, overlap: [_, overlap], ignore, .. } = settings.tiles;
        let (bad, classes) = (settings.run.bad_samples, data.classes.len());
        let (test, _) = segment_part(&data.images.test, classes, [size, overlap], ignore.0, bad)?;
        check_segment_images(settings, &test)?;
        let masks = data.images.test.pairs.iter().map(|(_, mask)| mask.clone());
        inputs.extend(masks);
        images = (0..test.images()).map(|image| test.path(image).to_owned()).collect();
        results = predictor.score(&test, &data.classes)?;
    }
    if let Some(folder) = &arguments.predict {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make '{}'", folder.display()))?;
        inputs.extend(images.iter().cloned());
        let paths = outputs(&images, &inputs, folder)?;
        let written = images.iter().zip(&paths).map(|(image, path)| predictor.write(image, path));
        let written = written.collect::<Result<Vec<_>>>()?;
        results.insert("predictions".into(), json!(written));
    }
    results.insert("seconds".into(), json!(started.elapsed().as_secs_f64()));
    if eval.json {
        print_json(&Value::Object(results))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Where the classes of each image go: its name in `folder`. Files that are read are not replaced, and no file is written twice.
fn outputs(images: &[PathBuf], inputs: &[PathBuf], folder: &Path) -> Result<Vec<PathBuf>> {
    let inputs: Vec<PathBuf> = inputs.iter().filter_map(|input| input.canonicalize().ok()).collect();
    let mut paths: Vec<PathBuf> = vec![];
    for image in images {
        let path = folder.join(image.file_stem().unwrap_or_default()).with_added_extension("tif");
        let shown = path.display();
        if path.canonicalize().is_ok_and(|path| inputs.contains(&path)) {
            return Err(
                Usage(format!("'{shown}' is an image or a mask that is read, expected another --predict")).into()
            );
        }
        if paths.contains(&path) {
            return Err(
                Usage(format!("two images would be written to '{shown}', expected images of different names")).into()
            );
        }
        paths.push(path);
    }
    Ok(paths)
}

impl Predictor {
    /// Tiles on the device at once.
    fn at_once(&self) -> usize {
        let run = &self.settings.run;
        run.micro_batch.unwrap_or(run.batch_size)
    }

    /// Scores on images with masks.
    fn score(&self, test: &TileSet, classes: &[String]) -> Result<Map<String, Value>> {
        let loader = segment_test_loader(test, &self.settings)?;
        let batches = loader.epoch(0, 0).map(|batch| batch.map_err(Error::Data));
        let scores = self.task.score(&self.model, test, batches, &self.device, self.at_once(), |_| Ok(()))?;
        let Scores { confusion, cross_entropy } = scores;
        let mut figures = vec![
            ("test_miou".to_owned(), confusion.mean_iou()),
            ("test_accuracy".to_owned(), confusion.accuracy()),
            ("test_loss".to_owned(), cross_entropy),
        ];
        let of_class = classes.iter().zip(confusion.iou());
        figures.extend(of_class.filter_map(|(class, score)| Some((format!("iou_{class}"), score?))));
        figures.iter().for_each(|(name, value)| tracing::info!(target: RESULT, "{name} {value:.4}"));
        Ok(figures.into_iter().map(|(name, value)| (name, json!(value))).collect())
    }

    /// Writes the classes of an image of any size to `path`, and returns that.
    fn write(&self, image: &Path, path: &Path) -> Result<PathBuf> {
        let tiles = &self.settings.tiles;
        let set = TileSet::new([image], TileConfig::new(tiles.size).with_overlap(tiles.overlap[1]))?;
        check_segment_images(&self.settings, &set)?;
        let (size, classes) = (set.grid(0).size(), self.settings.model.classes);
        let bar = ProgressBar::new(size[0] as u64);
        bar.set_style(ProgressStyle::with_template("{bar:30} row {pos}/{len}  ETA {eta}")?);
        let mut ids = vec![];
        // Each pixel has a class in the file, so that no tile may be left out.
        let loading = self.settings.run.loader(set.len()).with_bad_samples(BadSamples::FAIL);
        let loader = TileBatch::loader(set.clone(), None, loading)?;
        write_classes(path, size, classes, Some(image), |rows| -> Result<()> {
            let batches = loader.epoch(0, 0).map(|batch| batch.map_err(Error::Data));
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
        tracing::info!(target: RESULT, "{}", path.display());
        Ok(path.to_owned())
    }
}
