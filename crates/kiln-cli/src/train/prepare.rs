//! Makes a run from the command line: combines recipe, settings file and options.

use std::path::Path;

use crate::pipelines::{
    CHECKPOINTS, Classify, ClassifySettings, DEFAULT_CLASSIFIER, GptSettings, Kind, NextToken, Run,
    classify_fixture_recipe, classify_recipe, classify_run, next_token_fixture_recipe, next_token_recipe,
    next_token_run, open_images,
};
use crate::usage::Usage;
use anyhow::{Result, bail};
use burn::tensor::Device;
use kiln_data::{Tokenizer, printable};
use kiln_models::{ClassifierConfig, GptConfig};
use kiln_training::Checkpoints;

use super::arguments::{borrowed, refuse_changes, settings_table};
use super::directory::CLASSES;
use super::optimizer::lay_optimizer_over;
use super::overlay::{absolute, data_of, resolve};
use super::replicas::place;
use crate::cli::{RunArgs, TrainClassify, TrainGpt};

/// Returns the classifier's run that the arguments describe, and its device, for one of the replicas of this process.
pub(crate) fn classify(arguments: &TrainClassify, thread: usize) -> Result<(Run<Classify, ClassifySettings>, Device)> {
    let own = &arguments.classify;
    let model_options = [
        ("--model", own.model.is_some()),
        ("--width", own.width.is_some()),
        ("--stem", own.stem.is_some()),
        ("--image-size", own.image_size.is_some()),
        ("--channels", own.channels.is_some()),
        ("--decode", own.decode.is_some()),
        ("--damaged-images", own.damaged_images.is_some()),
        ("--label-smoothing", own.label_smoothing.is_some()),
        ("--mixup", own.mixup.is_some()),
        ("--cutmix", own.cutmix.is_some()),
        ("--erase", own.erase.is_some()),
        ("--drop-path", own.drop_path.is_some()),
    ];
    refuse_changes(&arguments.run, &[&model_options[..], &own.teacher.given()].concat())?;
    let file = settings_table(&arguments.run, Kind::Classify)?;
    let file = borrowed(file.as_ref());
    let mut overlay = arguments.run.overlay()?;
    arguments.parallel.lay_over(&mut overlay);
    own.teacher.lay_over(&mut overlay)?;
    let named = file.as_ref().and_then(|(_, table)| table.get("model")?.get("name")?.as_str().map(str::to_owned));
    let model = own.model.clone().or(named).unwrap_or_else(|| DEFAULT_CLASSIFIER.to_owned());
    let model = match model.as_str() {
        // The default size of a network that is named without one.
        "vit" => "vit_tiny",
        "shufflenet_v2" => "shufflenet_v2_x1_0",
        name => name,
    };
    let family = ClassifierConfig::named(model, 1)?; // lists the names that exist
    overlay.set("model", "name", own.model.clone());
    overlay.set("model", "lean", arguments.run.step.stock_layers.then_some(false));
    overlay.set("model", "channels", own.channels.as_ref().map(|channels| if channels == "1" { 1 } else { 3 }));
    overlay.set("model", "width", own.width.map(|width| width_of(&family, width)).transpose()?);
    overlay.set("model", "stem", own.stem.clone());
    if let ClassifierConfig::Vit(_) = family {
        overlay.set("model", "image", own.image_size.map(i64::from));
        overlay.set("model", "drop_path", own.drop_path);
    } else if own.drop_path.is_some() {
        bail!(Usage(format!("--drop-path is not an option of {}, expected a vit", family.name())));
    }
    overlay.set("images", "size", own.image_size.map(i64::from));
    overlay.set("images", "decode", own.decode.clone());
    overlay.set("images", "damaged_images", own.damaged_images.clone());
    overlay.set("images", "label_smoothing", own.label_smoothing);
    overlay.set("images", "mixup", own.mixup);
    overlay.set("images", "cutmix", own.cutmix);
    overlay.set("images", "erase", own.erase);

    let mut defaults = None;
    let (mut settings, data): (ClassifySettings, _) = if arguments.run.resume.is_some() {
        let settings: ClassifySettings = resolve(None, file, overlay)?;
        let data = open_images(settings.run.data.as_deref())?;
        (settings, data)
    } else {
        let path = arguments.run.step.data.clone().or_else(|| data_of(file.as_ref()));
        let data = open_images(path.as_deref())?;
        let in_file = file.as_ref().and_then(|(_, table)| table.get("images")?.get("size")?.as_integer());
        let size = own.image_size.map(|size| size as usize).or(in_file.and_then(|size| usize::try_from(size).ok()));
        let recipe = if path.is_some() { classify_recipe } else { classify_fixture_recipe }(&data.train, model, size)?;
        let settings = resolve(Some(&recipe), file, overlay)?;
        defaults = Some(recipe);
        (settings, data)
    };
    if let Some(run) = &arguments.run.resume {
        check_classes(run, data.train.classes())?;
    }
    lay_optimizer_over(&mut settings, &arguments.run)?;
    place(&mut settings.run, thread)?;
    settings.run.begun = has_weights(&arguments.run)?;
    let (run, device) = classify_run(settings, data)?;
    Ok((run.with_defaults(defaults.as_ref()), device))
}

/// Whether the initial weights of a run are in a checkpoint: its own, or that of the run that it starts from.
pub(crate) fn has_weights(arguments: &RunArgs) -> Result<bool> {
    match &arguments.resume {
        Some(run) => Ok(!Checkpoints::new(run.join(CHECKPOINTS), 1)?.list()?.is_empty()),
        None => Ok(arguments.begin.from.is_some()),
    }
}

/// Converts `--width` to the format of a network's settings.
fn width_of(family: &ClassifierConfig, width: f64) -> Result<toml::Value> {
    match family {
        ClassifierConfig::ResNet(_) if width.fract() == 0.0 => Ok(toml::Value::Integer(width as i64)),
        ClassifierConfig::ResNet(_) => bail!(Usage(format!("--width is {width}, expected channels of a ResNet"))),
        ClassifierConfig::MobileNetV2(_) | ClassifierConfig::MobileNetV3(_) => Ok(toml::Value::Float(width)),
        other => bail!(Usage(format!("--width is not an option of {}, expected resnet or mobilenet", other.name()))),
    }
}

/// Refuses data whose labels mean other classes than those of the run in `run`, if the run names its classes.
pub(crate) fn check_classes(run: &Path, classes: &[String]) -> Result<()> {
    let Ok(text) = std::fs::read_to_string(run.join(CLASSES)) else { return Ok(()) };
    let known: Vec<&str> = text.lines().collect();
    if known != classes {
        bail!("the classes of the data set are {classes:?}, expected {known:?} as in '{}'", printable(&run));
    }
    Ok(())
}

/// Returns the decoder's run that the arguments describe, and its device, for one of the replicas of this process.
pub(crate) fn gpt(arguments: &TrainGpt, thread: usize) -> Result<(Run<NextToken, GptSettings>, Device)> {
    let own = &arguments.gpt;
    let model_options = [
        ("--model", own.model.is_some()),
        ("--context", own.context.is_some()),
        ("--tokenizer", own.tokenizer.is_some()),
        ("--dropout", own.dropout.is_some()),
    ];
    let given = [&model_options[..], &own.lora.given(), &own.teacher.given()].concat();
    refuse_changes(&arguments.run, &given)?;
    if own.lora.weights.is_some() && (arguments.run.begin.init.is_some() || arguments.run.begin.from.is_some()) {
        bail!(Usage(
            "--weights takes all weights of the same model, --init those that fit, --from those of a run with its optimizer's state: \
             expected one of the three"
                .into()
        ));
    }
    let mut file = settings_table(&arguments.run, Kind::Gpt)?;
    if own.lora.weights.is_some()
        && let Some(toml::Value::Table(run)) = file.as_mut().and_then(|(_, table)| table.get_mut("run"))
    {
        // The option replaces the initial weights in the file.
        run.remove("init");
        run.remove("from");
    }
    let file = borrowed(file.as_ref());

    let named = arguments.run.step.data.is_some() || data_of(file.as_ref()).is_some();
    let mut recipe = if named { next_token_recipe() } else { next_token_fixture_recipe() };
    let in_file =
        |key: &str| file.as_ref().is_some_and(|(_, table)| table.get("run").is_some_and(|run| run.get(key).is_some()));
    if arguments.run.epochs.is_some() || in_file("epochs") {
        recipe.run.max_steps = None; // whole epochs were asked for
    }
    let defaults = arguments.run.resume.is_none().then_some(&recipe);

    let mut overlay = arguments.run.overlay()?;
    arguments.parallel.lay_over(&mut overlay);
    own.lora.lay_over(&mut overlay)?;
    own.teacher.lay_over(&mut overlay)?;
    if let Some(name) = &own.model {
        let named = GptConfig::named(name, 1, 1)?;
        overlay.set("model", "layers", Some(named.layers as i64));
        overlay.set("model", "heads", Some(named.heads as i64));
        overlay.set("model", "width", Some(named.width as i64));
    }
    overlay.set("model", "context", own.context.map(i64::from));
    overlay.set("model", "dropout", own.dropout);
    overlay.set("model", "lean", arguments.run.step.stock_layers.then_some(false));
    if let Some(directory) = &own.tokenizer {
        overlay.set("text", "tokenizer", Some(toml::Table::from_iter([bpe(directory)?])));
        overlay.set("model", "vocab", Some(Tokenizer::bpe(directory)?.vocab() as i64));
    }
    let mut settings: GptSettings = resolve(defaults, file, overlay)?;
    lay_optimizer_over(&mut settings, &arguments.run)?;
    place(&mut settings.run, thread)?;
    settings.run.begun = has_weights(&arguments.run)?;
    if settings.model.context == 0 {
        bail!(Usage("--context is 0, expected at least 1 token".into()));
    }
    let (run, device) = next_token_run(settings)?;
    Ok((run.with_defaults(defaults), device))
}

fn bpe(directory: &Path) -> Result<(String, toml::Value)> {
    Ok(("bpe".to_owned(), absolute(directory)?.into()))
}
