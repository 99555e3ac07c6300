//! From the command line to a run of `train segment`.

use crate::pipelines::{
    IgnoredClass, Run, Segment, SegmentSettings, balanced_class_weights, open_segments, segment_recipe, segment_run,
    segment_tiles,
};
use crate::usage::Usage;
use anyhow::{Result, bail};
use burn::tensor::Device;
use kiln_data::{BadSamples, TileSet};
use kiln_models::UnetEncoder;

use super::arguments::{refuse_changes, settings_file};
use super::optimizer::lay_optimizer_over;
use super::overlay::{Overlay, data_of, read, resolve};
use super::prepare::check_classes;
use crate::cli::TrainSegment;

/// Rows and columns of a tile.
const TILE: usize = 128;
/// The class id that often stands for pixels without a label.
const IGNORE: u16 = 255;

/// The run that the arguments describe, and its device.
pub(crate) fn segment(arguments: &TrainSegment) -> Result<(Run<Segment, SegmentSettings>, Device)> {
    let model_options = [
        ("--encoder", arguments.encoder.is_some()),
        ("--width", arguments.width.is_some()),
        ("--classes", arguments.classes.is_some()),
        ("--tile", arguments.tile.is_some()),
        ("--overlap", arguments.overlap.is_some()),
        ("--ignore", arguments.ignore.is_some()),
        ("--class-weights", arguments.class_weights.is_some()),
        ("--dice", arguments.dice.is_some()),
    ];
    refuse_changes(&arguments.run, &model_options)?;
    if arguments.run.parallel.given() {
        bail!(Usage("--replicas and --stages divide classify and gpt runs, expected neither for segment".into()));
    }
    let file = settings_file(&arguments.run)?;
    let file = file.as_deref().map(|path| anyhow::Ok((path, read(path)?))).transpose()?;
    let mut overlay = arguments.run.overlay();
    if let Some(name) = &arguments.encoder {
        overlay.set("model", "encoder", Some(UnetEncoder::named(name)?.name()));
    }
    overlay.set("model", "width", arguments.width);
    overlay.set("model", "lean", arguments.run.stock_layers.then_some(false));
    overlay.set("loss", "dice", arguments.dice);

    let count = arguments.classes.map(|classes| classes as usize);
    if let Some(run) = &arguments.run.resume {
        let settings: SegmentSettings = resolve(None, file, overlay)?;
        let data = open_segments(settings.run.data.as_deref(), Some(settings.model.classes))?;
        check_classes(run, &data.classes)?;
        let [overlap, of_test] = settings.tiles.overlap;
        let sizes = [settings.tiles.size, overlap, of_test];
        let tiles = segment_tiles(&data, sizes, settings.tiles.ignore.0, settings.run.bad_samples)?;
        return segment_run(settings, &data, tiles);
    }

    let in_file = |table: &str, key: &str| file.as_ref().and_then(|(_, all)| all.get(table)?.get(key)).cloned();
    let path = arguments.run.data.clone().or_else(|| data_of(file.as_ref()));
    let number = |value: Option<toml::Value>| value.and_then(|value| usize::try_from(value.as_integer()?).ok());
    let data = open_segments(path.as_deref(), count.or_else(|| number(in_file("model", "classes"))))?;
    let size = arguments.tile.map(|tile| tile as usize).or_else(|| number(in_file("tiles", "size"))).unwrap_or(TILE);
    let overlaps = in_file("tiles", "overlap").and_then(|value| value.try_into::<[usize; 2]>().ok());
    let overlap = arguments.overlap.map(|overlap| overlap as usize).or(overlaps.map(|[overlap, _]| overlap));
    let sizes = [size, overlap.unwrap_or(size / 2), overlaps.map_or(size / 4, |[_, of_test]| of_test)];
    let ignore = match (&arguments.ignore, in_file("tiles", "ignore")) {
        (Some(text), _) => text.parse().map_err(|e| Usage(format!("--ignore: {e}")))?,
        (None, Some(value)) => value.try_into().map_err(|e: toml::de::Error| Usage(e.message().to_owned()))?,
        (None, None) => IgnoredClass(Some(IGNORE)),
    };
    let bad = match arguments
        .run
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
    overlay.set("model", "classes", arguments.classes.map(i64::from));
    weights(arguments, &tiles.train, bad, &mut overlay)?;
    let mut settings = resolve(Some(&recipe), file, overlay)?;
    lay_optimizer_over(&mut settings, &arguments.run)?;
    let (run, device) = segment_run(settings, &data, tiles)?;
    Ok((run.with_defaults(Some(&recipe)), device))
}

/// Writes down the weights of classes that `--class-weights` asks for.
fn weights(arguments: &TrainSegment, train: &TileSet, bad: BadSamples, overlay: &mut Overlay) -> Result<()> {
    let Some(text) = &arguments.class_weights else { return Ok(()) };
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
