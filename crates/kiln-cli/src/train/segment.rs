//! Makes a run of `train segment` from the command line.

use crate::pipelines::{
    IgnoredClass, Kind, Run, Segment, SegmentSettings, balanced_class_weights, open_segments, segment_recipe,
    segment_run, segment_tiles,
};
use crate::usage::Usage;
use anyhow::Result;
use burn::tensor::Device;
use kiln_data::{BadSamples, TileSet};
use kiln_models::UnetEncoder;

use super::arguments::{borrowed, refuse_changes, settings_table};
use super::optimizer::lay_optimizer_over;
use super::overlay::{Overlay, data_of, resolve};
use super::prepare::{check_classes, has_weights};
use crate::cli::{SegmentArgs, TrainSegment};

/// Rows and columns of a tile.
const TILE: usize = 128;
/// The class id that often means pixels without a label.
const IGNORE: u16 = 255;

/// The run that the arguments describe, and its device.
pub(crate) fn segment(arguments: &TrainSegment) -> Result<(Run<Segment, SegmentSettings>, Device)> {
    let own = &arguments.segment;
    let model_options = [
        ("--encoder", own.encoder.is_some()),
        ("--width", own.width.is_some()),
        ("--classes", own.classes.is_some()),
        ("--tile", own.tile.is_some()),
        ("--overlap", own.overlap.is_some()),
        ("--ignore", own.ignore.is_some()),
        ("--class-weights", own.class_weights.is_some()),
        ("--dice", own.dice.is_some()),
    ];
    refuse_changes(&arguments.run, &model_options)?;
    let file = settings_table(&arguments.run, Kind::Segment)?;
    let file = borrowed(file.as_ref());
    let mut overlay = arguments.run.overlay()?;
    if let Some(name) = &own.encoder {
        overlay.set("model", "encoder", Some(UnetEncoder::named(name)?.name()));
    }
    overlay.set("model", "width", own.width);
    overlay.set("model", "lean", arguments.run.step.stock_layers.then_some(false));
    overlay.set("loss", "dice", own.dice);

    let count = own.classes.map(|classes| classes as usize);
    if let Some(run) = &arguments.run.resume {
        let mut settings: SegmentSettings = resolve(None, file, overlay)?;
        settings.run.begun = has_weights(&arguments.run)?;
        let data = open_segments(settings.run.data.as_deref(), Some(settings.model.classes))?;
        check_classes(run, &data.classes)?;
        let [overlap, of_test] = settings.tiles.overlap;
        let sizes = [settings.tiles.size, overlap, of_test];
        let tiles = segment_tiles(&data, sizes, settings.tiles.ignore.0, settings.run.bad_samples)?;
        return segment_run(settings, &data, tiles);
    }

    let in_file = |table: &str, key: &str| file.as_ref().and_then(|(_, all)| all.get(table)?.get(key)).cloned();
    let path = arguments.run.step.data.clone().or_else(|| data_of(file.as_ref()));
    let number = |value: Option<toml::Value>| value.and_then(|value| usize::try_from(value.as_integer()?).ok());
    let data = open_segments(path.as_deref(), count.or_else(|| number(in_file("model", "classes"))))?;
    let size = own.tile.map(|tile| tile as usize).or_else(|| number(in_file("tiles", "size"))).unwrap_or(TILE);
    let overlaps = in_file("tiles", "overlap").and_then(|value| value.try_into::<[usize; 2]>().ok());
    let overlap = own.overlap.map(|overlap| overlap as usize).or(overlaps.map(|[overlap, _]| overlap));
    let sizes = [size, overlap.unwrap_or(size / 2), overlaps.map_or(size / 4, |[_, of_test]| of_test)];
    let ignore = match (&own.ignore, in_file("tiles", "ignore")) {
        (Some(text), _) => text.parse().map_err(|e| Usage(format!("--ignore: {e}")))?,
        (None, Some(value)) => value.try_into().map_err(|e: toml::de::Error| Usage(e.message().to_owned()))?,
        (None, None) => IgnoredClass(Some(IGNORE)),
    };
    let bad = match arguments
        .run
        .step
        .bad_samples
        .clone()
        .or_else(|| in_file("run", "bad_samples")?.as_str().map(str::to_owned))
    {
        Some(text) => text.parse().map_err(|e: kiln_data::Error| Usage(e.to_string()))?,
        None => BadSamples::FAIL,
    };
    let tiles = segment_tiles(&data, sizes, ignore.0, bad)?;
    let recipe = segment_recipe(&data, &tiles.train, path.is_none(), bad)?;
    overlay.set("tiles", "size", Some(size as i64));
    overlay.set("tiles", "overlap", Some(vec![sizes[1] as i64, sizes[2] as i64]));
    let written = ignore.0.map_or(toml::Value::from("none"), |id| toml::Value::from(i64::from(id)));
    overlay.set("tiles", "ignore", Some(written));
    overlay.set("model", "classes", own.classes.map(i64::from));
    weights(own, &tiles.train, bad, &mut overlay)?;
    let mut settings: SegmentSettings = resolve(Some(&recipe), file, overlay)?;
    settings.run.begun = has_weights(&arguments.run)?;
    lay_optimizer_over(&mut settings, &arguments.run)?;
    let (run, device) = segment_run(settings, &data, tiles)?;
    Ok((run.with_defaults(Some(&recipe)), device))
}

/// Measures and writes the class weights that `--class-weights` asks for.
fn weights(own: &SegmentArgs, train: &TileSet, bad: BadSamples, overlay: &mut Overlay) -> Result<()> {
    let Some(text) = &own.class_weights else { return Ok(()) };
    let weights = match text.as_str() {
        "balanced" => balanced_class_weights(train, bad)?,
        list => {
            let parsed: Result<Vec<f32>, _> = list.split(',').map(|weight| weight.trim().parse()).collect();
            parsed.map_err(|_| {
                Usage(format!(
                    "--class-weights is '{text}', expected balanced or a number for each class, as in 1,2.5,1"
                ))
            })?
        }
    };
    overlay.set("loss", "class_weights", Some(weights.into_iter().map(f64::from).collect::<Vec<_>>()));
    Ok(())
}
