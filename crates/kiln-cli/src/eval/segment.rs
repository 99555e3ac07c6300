//! `kiln eval segment`: scores of whole images, and their classes written as TIFF.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use kiln_data::{TileSet, printable, write_classes};
use kiln_training::{Error, Passes};
use serde_json::{Map, Value, json};

use crate::cli::EvalSegment;
use crate::log::RESULT;
use crate::output::{path_json, print_json};
use crate::outputs::{Input, outputs};
use crate::pipelines::SegmentSettings;
use crate::pipelines::segment::{Predictor, Scores, TileSettings, check_images, open, part, test_loader};
use crate::run_directory::check_classes_of;
use crate::usage::Usage;

pub(super) fn run(arguments: &EvalSegment, mut settings: SegmentSettings) -> Result<ExitCode> {
    let eval = &arguments.eval;
    let tiles = &mut settings.data.tiles;
    if let Some(size) = arguments.tile {
        (tiles.size, tiles.overlap) = (size, [0, size / 4]);
    }
    if let Some(overlap) = arguments.overlap {
        tiles.overlap[1] = overlap;
    }
    let side = tiles.size;
    settings.model.check_input([side; 2]).map_err(|_| Usage(format!("--tile is {side}, expected a multiple of 32")))?;
    let predictor = Predictor::open(settings, &eval.checkpoint)?;

    let (started, mut results) = (Instant::now(), Map::new());
    let (mut images, mut masks) = (arguments.image.clone(), vec![]);
    if images.is_empty() {
        let settings = &predictor.settings;
        let data = open(settings.run.data.as_deref(), Some(settings.model.classes))?;
        check_classes_of(&eval.checkpoint, &data.classes)?;
        let TileSettings { size, overlap: [_, overlap], ignore, .. } = settings.data.tiles;
        let (bad, classes) = (settings.run.bad_samples, data.classes.len());
        let (test, _) = part(&data.images.test, classes, [size, overlap], ignore.0, bad)?;
        check_images(settings, &test)?;
        masks = data.images.test.pairs.iter().map(|(_, mask)| mask.clone()).collect();
        images = (0..test.images()).map(|image| test.path(image).to_owned()).collect();
        results = score(&predictor, &test, &data.classes)?;
    }
    if let Some(folder) = &arguments.predict {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make '{}'", printable(&folder)))?;
        let inputs: Vec<Input> = images.iter().map(|image| Input::file(image)).collect();
        let paths = outputs(&inputs, &masks, ("--predict", folder), "tif")?;
        let written = images.iter().zip(&paths).map(|(image, path)| write(&predictor, image, path));
        let written = written.collect::<Result<Vec<_>>>()?;
        results.insert("predictions".into(), written.iter().map(|path| path_json(path)).collect());
    }
    results.insert("seconds".into(), json!(started.elapsed().as_secs_f64()));
    if eval.options.json {
        print_json(&Value::Object(results))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Scores on images with masks.
fn score(predictor: &Predictor, test: &TileSet, classes: &[String]) -> Result<Map<String, Value>> {
    let Predictor { task, model, device, settings } = predictor;
    let loader = test_loader(test, settings)?;
    let batches = loader.epoch(0, 0).map(|batch| batch.map_err(Error::Data));
    let Scores { confusion, cross_entropy } =
        task.score(model, test, batches, &Passes::on(device), settings.run.at_once(), |_| Ok(()))?;
    let mut figures = vec![
        ("test_miou".to_owned(), confusion.mean_iou()),
        ("test_accuracy".to_owned(), confusion.accuracy()),
        ("test_loss".to_owned(), cross_entropy),
    ];
    let of_class = classes.iter().zip(confusion.iou());
    figures.extend(of_class.filter_map(|(class, score)| Some((format!("iou_{class}"), score?))));
    figures.iter().for_each(|(name, value)| tracing::info!(target: RESULT, "{} {value:.4}", printable(name)));
    Ok(figures.into_iter().map(|(name, value)| (name, json!(value))).collect())
}

/// Writes the classes of an image of any size to `path`, and returns the path.
fn write(predictor: &Predictor, image: &Path, path: &Path) -> Result<PathBuf> {
    let set = predictor.tiles(image)?;
    let size = set.grid(0).size();
    let bar = ProgressBar::new(size[0] as u64);
    bar.set_style(ProgressStyle::with_template("{bar:30} row {pos}/{len}  ETA {eta}")?);
    write_classes(path, size, predictor.settings.model.classes, Some(image), |rows| {
        predictor.rows(&set, |_, ids| {
            rows.row(ids)?;
            bar.inc(1);
            Ok(())
        })
    })?;
    bar.finish_and_clear();
    tracing::info!(target: RESULT, "{}", printable(&path));
    Ok(path.to_owned())
}
