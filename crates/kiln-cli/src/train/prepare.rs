//! From the command line to a run: recipe, settings file and options put together.

use std::path::Path;

use crate::pipelines::{
    Classify, ClassifySettings, DEFAULT_CLASSIFIER, GptSettings, NextToken, PipelineSettings, Run,
    classify_fixture_recipe, classify_recipe, classify_run, next_token_fixture_recipe, next_token_recipe,
    next_token_run, open_images,
};
use crate::usage::Usage;
use anyhow::{Result, bail};
use burn::tensor::Device;
use kiln_data::Tokenizer;
use kiln_models::{ClassifierConfig, GptConfig};

use super::arguments::{refuse_changes, settings_file};
use super::directory::CLASSES;
use super::optimizer::lay_optimizer_over;
use super::overlay::{absolute, data_of, read, resolve};
use super::replicas::place;
use crate::cli::{TrainClassify, TrainGpt};

/// The run that the arguments describe, and its device, for one of the replicas of this process.
pub(crate) fn classify(arguments: &TrainClassify, thread: usize) -> Result<(Run<Classify, ClassifySettings>, Device)> {
    let model_options = [
        ("--model", arguments.model.is_some()),
        ("--width", arguments.width.is_some()),
        ("--stem", arguments.stem.is_some()),
        ("--image-size", arguments.image_size.is_some()),
        ("--decode", arguments.decode.is_some()),
        ("--label-smoothing", arguments.label_smoothing.is_some()),
        ("--mixup", arguments.mixup.is_some()),
        ("--cutmix", arguments.cutmix.is_some()),
        ("--erase", arguments.erase.is_some()),
        ("--drop-path", arguments.drop_path.is_some()),
    ];
    refuse_changes(&arguments.run, &[&model_options[..], &arguments.teacher.given()].concat())?;
    let file = settings_file(&arguments.run)?;
    let file = file.as_deref().map(|path| anyhow::Ok((path, read(path)?))).transpose()?;
    let mut overlay = arguments.run.overlay();
    arguments.teacher.lay_over(&mut overlay);
    let named = file.as_ref().and_then(|(_, table)| table.get("model")?.get("name")?.as_str().map(str::to_owned));
    let model = arguments.model.clone().or(named).unwrap_or_else(|| DEFAULT_CLASSIFIER.to_owned());
    let model = match model.as_str() {
        // Names of sizes that have none.
        "vit" => "vit_tiny",
        "shufflenet_v2" => "shufflenet_v2_x1_0",
        name => name,
    };
    let family = ClassifierConfig::named(model, 1)?; // lists the names that exist
    overlay.set("model", "name", arguments.model.clone());
    overlay.set("model", "lean", arguments.run.stock_layers.then_some(false));
    overlay.set("model", "width", arguments.width.map(|width| width_of(&family, width)).transpose()?);
    overlay.set("model", "stem", arguments.stem.clone());
    if let ClassifierConfig::Vit(_) = family {
        overlay.set("model", "image", arguments.image_size.map(i64::from));
        overlay.set("model", "drop_path", arguments.drop_path);
    } else if arguments.drop_path.is_some() {
        bail!(Usage(format!("--drop-path is not an option of {}, expected a vit", family.name())));
    }
    overlay.set("images", "size", arguments.image_size.map(i64::from));
    overlay.set("images", "decode", arguments.decode.clone());
    overlay.set("images", "label_smoothing", arguments.label_smoothing);
    overlay.set("images", "mixup", arguments.mixup);
    overlay.set("images", "cutmix", arguments.cutmix);
    overlay.set("images", "erase", arguments.erase);

    let mut defaults = None;
    let (mut settings, data): (ClassifySettings, _) = if arguments.run.resume.is_some() {
        let settings: ClassifySettings = going_on(resolve(None, file, overlay)?);
        let data = open_images(settings.run.data.as_deref())?;
        (settings, data)
    } else {
        let path = arguments.run.data.clone().or_else(|| data_of(file.as_ref()));
        let data = open_images(path.as_deref())?;
        let recipe = if path.is_some() { classify_recipe } else { classify_fixture_recipe }(&data.train, model)?;
        let settings = resolve(Some(&recipe), file, overlay)?;
        defaults = Some(recipe);
        (settings, data)
    };
    if let Some(run) = &arguments.run.resume {
        check_classes(run, data.train.classes())?;
    }
    lay_optimizer_over(&mut settings, &arguments.run)?;
    place(&mut settings.run, thread)?;
    let (run, device) = classify_run(settings, data)?;
    Ok((run.with_defaults(defaults.as_ref()), device))
}

/// The settings of a run that goes on: its checkpoint has the weights, not what the run began with.
fn going_on<S: PipelineSettings>(mut settings: S) -> S {
    if let Some(compression) = settings.compression_mut() {
        compression.weights = None;
    }
    settings
}

/// `--width` as the settings of a network have it.
fn width_of(family: &ClassifierConfig, width: f64) -> Result<toml::Value> {
    match family {
        ClassifierConfig::ResNet(_) if width.fract() == 0.0 => Ok(toml::Value::Integer(width as i64)),
        ClassifierConfig::ResNet(_) => bail!(Usage(format!("--width is {width}, expected channels of a ResNet"))),
        ClassifierConfig::MobileNetV2(_) | ClassifierConfig::MobileNetV3(_) => Ok(toml::Value::Float(width)),
        other => bail!(Usage(format!("--width is not an option of {}, expected resnet or mobilenet", other.name()))),
    }
}

/// Refuses data whose labels mean other classes than those of the run in `run`, if the run says what they mean.
pub(crate) fn check_classes(run: &Path, classes: &[String]) -> Result<()> {
    let Ok(text) = std::fs::read_to_string(run.join(CLASSES)) else { return Ok(()) };
    let known: Vec<&str> = text.lines().collect();
    if known != classes {
        bail!("the classes of the data set are {classes:?}, expected {known:?} as in '{}'", run.display());
    }
    Ok(())
}

/// The same for a decoder.
pub(crate) fn gpt(arguments: &TrainGpt, thread: usize) -> Result<(Run<NextToken, GptSettings>, Device)> {
    let model_options = [
        ("--model", arguments.model.is_some()),
        ("--context", arguments.context.is_some()),
        ("--tokenizer", arguments.tokenizer.is_some()),
        ("--dropout", arguments.dropout.is_some()),
    ];
    let given = [&model_options[..], &arguments.lora.given(), &arguments.teacher.given()].concat();
    refuse_changes(&arguments.run, &given)?;
    let file = settings_file(&arguments.run)?;
    let file = file.as_deref().map(|path| anyhow::Ok((path, read(path)?))).transpose()?;

    let named = arguments.run.data.is_some() || data_of(file.as_ref()).is_some();
    let mut recipe = if named { next_token_recipe() } else { next_token_fixture_recipe() };
    let in_file =
        |key: &str| file.as_ref().is_some_and(|(_, table)| table.get("run").is_some_and(|run| run.get(key).is_some()));
    if arguments.run.epochs.is_some() || in_file("epochs") {
        recipe.run.max_steps = None; // whole epochs were asked for
    }
    let defaults = arguments.run.resume.is_none().then_some(&recipe);

    let mut overlay = arguments.run.overlay();
    arguments.lora.lay_over(&mut overlay);
    arguments.teacher.lay_over(&mut overlay);
    if let Some(name) = &arguments.model {
        let named = GptConfig::named(name, 1, 1)?;
        overlay.set("model", "layers", Some(named.layers as i64));
        overlay.set("model", "heads", Some(named.heads as i64));
        overlay.set("model", "width", Some(named.width as i64));
    }
    overlay.set("model", "context", arguments.context.map(i64::from));
    overlay.set("model", "dropout", arguments.dropout);
    overlay.set("model", "lean", arguments.run.stock_layers.then_some(false));
    if let Some(directory) = &arguments.tokenizer {
        overlay.set("text", "tokenizer", Some(toml::Table::from_iter([bpe(directory)])));
        overlay.set("model", "vocab", Some(Tokenizer::bpe(directory)?.vocab() as i64));
    }
    let settings: GptSettings = resolve(defaults, file, overlay)?;
    let mut settings = if arguments.run.resume.is_some() { going_on(settings) } else { settings };
    lay_optimizer_over(&mut settings, &arguments.run)?;
    place(&mut settings.run, thread)?;
    if settings.model.context == 0 {
        bail!(Usage("--context is 0, expected at least 1 token".into()));
    }
    let (run, device) = next_token_run(settings)?;
    Ok((run.with_defaults(defaults), device))
}

fn bpe(directory: &Path) -> (String, toml::Value) {
    ("bpe".to_owned(), absolute(directory).into())
}
