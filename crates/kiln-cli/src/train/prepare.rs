//! Makes a run from the command line: combines recipe, settings file and options.

use anyhow::{Result, bail};
use burn::tensor::Device;
use kiln_data::{BadSamples, TileSet, Tokenizer, TokenizerKind};
use kiln_models::{ClassifierConfig, DecoderConfig, UnetEncoder};
use toml::{Table, Value};

use super::options::{apply, refuse_changes, settings_file};
use super::processes::place;
use crate::cli::{CallArgs, NetworkArgs, OfStep, SegmentArgs, TrainClassify, TrainGpt, TrainSegment};
use crate::pipelines::segment::{IgnoredClass, balanced_class_weights};
use crate::pipelines::{Classify, ClassifySettings, GptSettings, NextToken, Pipeline, Run, Segment, SegmentSettings};
use crate::pipelines::{classify, next_token, segment};
use crate::run_directory::check_classes;
use crate::settings_file::{SettingsFile, resolve};
use crate::usage::Usage;

/// A command that describes a run.
pub(crate) trait RunCommand: Sync {
    /// The pipeline of the run.
    type Pipeline: Pipeline;

    /// The options that are no settings.
    fn call(&self) -> &CallArgs;

    /// The run and its device, for one of the replicas of this process.
    fn prepare(&self, replica: usize) -> Result<(Run<Self::Pipeline>, Device)>;
}

impl<C: RunCommand> RunCommand for OfStep<C> {
    type Pipeline = C::Pipeline;

    fn call(&self) -> &CallArgs {
        self.0.call()
    }

    fn prepare(&self, replica: usize) -> Result<(Run<C::Pipeline>, Device)> {
        self.0.prepare(replica)
    }
}

impl RunCommand for TrainClassify {
    type Pipeline = Classify;

    fn call(&self) -> &CallArgs {
        &self.call
    }

    fn prepare(&self, replica: usize) -> Result<(Run<Classify>, Device)> {
        refuse_changes(&self.call)?;
        let file = settings_file::<Classify>(&self.run, &self.call)?;
        let named = file.as_ref().and_then(|file| file.text("model", "name"));
        let name = match self.network.model.as_deref().or(named).unwrap_or(classify::DEFAULT) {
            // The default size of a network that is named without one.
            "vit" => "vit_tiny",
            "shufflenet_v2" => "shufflenet_v2_x1_0",
            name => name,
        };
        let image_size = self.images.value::<usize>("image_size");
        let network = self.network.table(name, image_size, self.call.stock_layers)?;
        let network = Table::from_iter([("model".to_owned(), Value::Table(network))]);
        let (mut settings, data, defaults): (ClassifySettings, _, _) = if let Some(run) = &self.call.resume {
            let settings = resolve::<Classify>(None, file.as_ref(), network)?;
            let data = classify::open(settings.run.data.as_deref())?;
            check_classes(run, data.train.classes())?;
            (settings, data, None)
        } else {
            let path = self.run.path("data").or_else(|| file.as_ref()?.text("run", "data").map(Into::into));
            let data = classify::open(path.as_deref())?;
            let size = image_size.or_else(|| file.as_ref()?.number("images", "size"));
            let recipe = if path.is_some() { classify::recipe } else { classify::fixture_recipe };
            let recipe = recipe(&data.train, name, size)?;
            (resolve::<Classify>(Some(&recipe), file.as_ref(), network)?, data, Some(recipe))
        };
        self.images.apply(&mut settings.data.images)?;
        self.teacher.apply(&mut settings.compression);
        self.parallel.apply(&mut settings.run.parallel)?;
        apply::<Classify>(&mut settings, &self.run, &self.call)?;
        place(&mut settings.run, replica)?;
        let (run, device) = classify::run(settings, data)?;
        Ok((run.with_defaults(defaults.as_ref()), device))
    }
}

impl NetworkArgs {
    /// The options as the table of the network `name`.
    fn table(&self, name: &str, image_size: Option<usize>, stock_layers: bool) -> Result<Table> {
        let family = ClassifierConfig::named(name, 1)?; // lists the names that exist
        let mut table = Table::try_from(self)?;
        if let Some(width) = self.width {
            table.insert("width".into(), width_of(&family, width)?);
        }
        if stock_layers {
            table.insert("lean".into(), false.into());
        }
        match (family, image_size) {
            (ClassifierConfig::Vit(_), Some(size)) => drop(table.insert("image".into(), Value::Integer(size as i64))),
            (ClassifierConfig::Vit(_), None) => {}
            (other, _) if self.drop_path.is_some() => {
                bail!(Usage(format!("--drop-path is not an option of {}, expected a vit", other.name())))
            }
            _ => {}
        }
        Ok(table)
    }
}

/// Converts `--width` to the format of a network's settings.
fn width_of(family: &ClassifierConfig, width: f64) -> Result<Value> {
    match family {
        ClassifierConfig::ResNet(_) if width.fract() == 0.0 => Ok(Value::Integer(width as i64)),
        ClassifierConfig::ResNet(_) => bail!(Usage(format!("--width is {width}, expected channels of a ResNet"))),
        ClassifierConfig::MobileNetV2(_) | ClassifierConfig::MobileNetV3(_) => Ok(Value::Float(width)),
        other => bail!(Usage(format!("--width is not an option of {}, expected resnet or mobilenet", other.name()))),
    }
}

impl RunCommand for TrainGpt {
    type Pipeline = NextToken;

    fn call(&self) -> &CallArgs {
        &self.call
    }

    fn prepare(&self, replica: usize) -> Result<(Run<NextToken>, Device)> {
        let given = &self.call.given;
        refuse_changes(&self.call)?;
        if self.lora.given.is_some() && given.any(&["from"]) {
            bail!(Usage(
                "--adapters begins with the adapters of a folder, --from with those of a run: expected one of the two"
                    .into()
            ));
        }
        let mut file = settings_file::<NextToken>(&self.run, &self.call)?;
        let folder = self.gpt.model.as_deref().and_then(next_token::folder);
        if let (true, Some(file)) = (folder.is_some(), &mut file) {
            file.remove("run", &["init", "from"]); // the folder replaces the initial weights in the file
        }
        let in_file = |key: &str| file.as_ref().is_some_and(|file| file.get("run", key).is_some());
        let has_data = given.any(&["data"]) || in_file("data");
        let mut recipe = if has_data { next_token::recipe() } else { next_token::fixture_recipe() };
        if given.any(&["epochs"]) || in_file("epochs") {
            recipe.run.max_steps = None; // whole epochs were asked for
        }
        if folder.is_some() {
            recipe.schedule.peak = next_token::rate(self.lora.adapters.lora.is_some() || self.lora.given.is_some());
        }
        let defaults = self.call.resume.is_none().then_some(&recipe);
        let mut settings: GptSettings = resolve::<NextToken>(defaults, file.as_ref(), Table::new())?;
        self.apply(&mut settings)?;
        self.lora.apply(&mut settings.compression, &settings.model)?;
        self.teacher.apply(&mut settings.compression);
        self.parallel.apply(&mut settings.run.parallel)?;
        apply::<NextToken>(&mut settings, &self.run, &self.call)?;
        place(&mut settings.run, replica)?;
        let (run, device) = next_token::run(settings)?;
        Ok((run.with_defaults(defaults), device))
    }
}

impl TrainGpt {
    /// Applies the options of the model and the tokenizer.
    fn apply(&self, settings: &mut GptSettings) -> Result<()> {
        let own = &self.gpt;
        if own.context == Some(0) {
            bail!(Usage("--context is 0, expected at least 1 token".into()));
        }
        settings.data.text.validation = own.validation.clone().or(settings.data.text.validation.take());
        let lean = !self.call.stock_layers && settings.model.is_lean();
        match (own.model.as_deref(), own.model.as_deref().and_then(next_token::folder)) {
            (_, Some(folder)) => {
                let other_weights = self.call.given.any(&["init", "from"]);
                next_token::begin_with(settings, folder, own.context, other_weights)?;
            }
            (Some(name), None) => {
                let sizes = next_token::named(name, settings.model.vocab(), settings.model.context())?;
                let dropout = match &settings.model {
                    DecoderConfig::Gpt(model) => model.dropout,
                    _ => 0.0,
                };
                settings.model = DecoderConfig::Gpt(sizes.with_dropout(dropout));
            }
            (None, None) => {}
        }
        let context = own.context.unwrap_or(settings.model.context());
        settings.model = settings.model.clone().with_context(context).with_lean(lean);
        let of_folder = own.model.as_deref().and_then(next_token::folder).is_some();
        own.sizes.apply(&mut settings.model, of_folder)?;
        match (&mut settings.model, own.dropout, &own.tokenizer) {
            (DecoderConfig::Gpt(model), dropout, tokenizer) => {
                model.dropout = dropout.unwrap_or(model.dropout);
                if let Some(directory) = tokenizer {
                    model.vocab = Tokenizer::bpe(directory)?.vocab();
                    settings.data.text.tokenizer = TokenizerKind::Bpe(directory.clone());
                }
            }
            (_, Some(_), _) => {
                bail!(Usage("--dropout is an option of a GPT, and a model of the Llama family has none".into()))
            }
            (_, None, Some(_)) => {
                bail!(Usage("--tokenizer is an option of a GPT: a Hugging Face folder has its own".into()))
            }
            (_, None, None) => {}
        }
        Ok(())
    }
}

/// Rows and columns of a tile.
const TILE: usize = 128;
/// The class id that often means pixels without a label.
const IGNORE: u16 = 255;

impl RunCommand for TrainSegment {
    type Pipeline = Segment;

    fn call(&self) -> &CallArgs {
        &self.call
    }

    fn prepare(&self, _: usize) -> Result<(Run<Segment>, Device)> {
        refuse_changes(&self.call)?;
        let file = settings_file::<Segment>(&self.run, &self.call)?;
        if let Some(run) = &self.call.resume {
            let mut settings: SegmentSettings = resolve::<Segment>(None, file.as_ref(), Table::new())?;
            apply::<Segment>(&mut settings, &self.run, &self.call)?;
            let data = segment::open(settings.run.data.as_deref(), Some(settings.model.classes))?;
            check_classes(run, &data.classes)?;
            let tiles = &settings.data.tiles;
            let ([overlap, of_test], bad) = (tiles.overlap, settings.run.bad_samples);
            let tiles = segment::tiles(&data, [tiles.size, overlap, of_test], tiles.ignore.0, bad)?;
            return segment::run(settings, &data, tiles);
        }
        let path = self.run.path("data").or_else(|| file.as_ref()?.text("run", "data").map(Into::into));
        let classes = self.segment.classes.or_else(|| file.as_ref()?.number("model", "classes"));
        let data = segment::open(path.as_deref(), classes)?;
        let (sizes, ignore, bad) = self.tiling(file.as_ref())?;
        let tiles = segment::tiles(&data, sizes, ignore.0, bad)?;
        let recipe = segment::recipe(&data, &tiles.train, path.is_none(), bad)?;
        let mut settings: SegmentSettings = resolve::<Segment>(Some(&recipe), file.as_ref(), Table::new())?;
        let [size, overlap, of_test] = sizes;
        let own = &mut settings.data.tiles;
        (own.size, own.overlap, own.ignore) = (size, [overlap, of_test], ignore);
        self.segment.apply(&mut settings, &tiles.train, bad)?;
        settings.model.lean &= !self.call.stock_layers;
        apply::<Segment>(&mut settings, &self.run, &self.call)?;
        let (run, device) = segment::run(settings, &data, tiles)?;
        Ok((run.with_defaults(Some(&recipe)), device))
    }
}

/// The size of tiles and their overlaps in training and in evaluation, the ignored class, and the policy for bad samples.
type Tiling = ([usize; 3], IgnoredClass, BadSamples);

impl TrainSegment {
    /// How images are cut into tiles, which is known before the recipe.
    fn tiling(&self, file: Option<&SettingsFile>) -> Result<Tiling> {
        let own = &self.segment;
        let in_file = |table: &str, key: &str| file.and_then(|file| file.get(table, key)).cloned();
        let size = own.tile.or_else(|| file?.number("tiles", "size")).unwrap_or(TILE);
        let overlaps = in_file("tiles", "overlap").and_then(|value| value.try_into::<[usize; 2]>().ok());
        let overlap = own.overlap.or(overlaps.map(|[overlap, _]| overlap)).unwrap_or(size / 2);
        let of_test = overlaps.map_or(size / 4, |[_, of_test]| of_test);
        let refused = |error: toml::de::Error| Usage(error.message().to_owned());
        let ignore = match (own.ignore, in_file("tiles", "ignore")) {
            (Some(ignore), _) => ignore,
            (None, Some(value)) => value.try_into().map_err(refused)?,
            (None, None) => IgnoredClass(Some(IGNORE)),
        };
        let bad = match (self.run.value("bad_samples"), in_file("run", "bad_samples")) {
            (Some(bad), _) => bad,
            (None, Some(value)) => value.try_into().map_err(refused)?,
            (None, None) => BadSamples::FAIL,
        };
        Ok(([size, overlap, of_test], ignore, bad))
    }
}

impl SegmentArgs {
    /// Applies the options of the model and the loss. Class weights are measured on the tiles `train` if they are to be balanced.
    fn apply(&self, settings: &mut SegmentSettings, train: &TileSet, bad: BadSamples) -> Result<()> {
        let (model, loss) = (&mut settings.model, &mut settings.data.loss);
        if let Some(name) = &self.encoder {
            model.encoder = UnetEncoder::named(name)?;
        }
        model.width = self.width.unwrap_or(model.width);
        model.classes = self.classes.unwrap_or(model.classes);
        loss.dice = self.dice.unwrap_or(loss.dice);
        loss.class_weights = match self.class_weights.as_deref() {
            None => loss.class_weights.take(),
            Some("balanced") => Some(balanced_class_weights(train, bad)?),
            Some(list) => {
                let parsed: Result<Vec<f32>, _> = list.split(',').map(|weight| weight.trim().parse()).collect();
                let expected = "expected balanced or a number for each class, as in 1,2.5,1";
                Some(parsed.map_err(|_| Usage(format!("--class-weights is '{list}', {expected}")))?)
            }
        };
        Ok(())
    }
}
