//! The pipelines whose runs can be made smaller, behind one trait.

use std::path::Path;

use crate::pipelines::{
    ClassifySettings, CompressionSettings, GptSettings, PipelineSettings, Run, SharedTask, classify_run, load_merged,
    next_token_run, open_images,
};
use crate::usage::Usage;
use anyhow::{Context, Result, anyhow, bail};
use burn::tensor::{Device, Int, Tensor};
use kiln_data::printable;
use kiln_models::{Classifier, ClassifierConfig, Gpt, GptConfig, SafetensorsModel};

use crate::cli::CompressArgs;
use crate::train::overlay::{absolute, read};
use crate::train::prepare::check_classes;

/// The settings of a pipeline whose runs can be made smaller.
pub(super) trait Family: PipelineSettings + Clone + 'static {
    type Model: SafetensorsModel + Sync + 'static;
    type Task: SharedTask<Model = Self::Model> + 'static;

    /// The run of the settings, and its device.
    fn into_run(self) -> Result<(Run<Self::Task, Self>, Device)>;

    /// The model of the settings. If `lean` is false, it uses burn's own layers.
    fn plain(&self, lean: bool, device: &Device) -> Result<Self::Model>;

    /// Returns the settings with kiln-layers' operations (`true`) or burn's own layers (`false`), and all else unchanged.
    fn with_lean(self, lean: bool) -> Self;

    /// The settings that make the model smaller.
    fn own_compression(&mut self) -> &mut CompressionSettings;

    /// Runs `model` on an input of one sample, of zeros.
    fn forward_once(&self, model: &Self::Model, device: &Device);

    /// Changes the settings to those of a student: another model by name, and another width. The default is half of the width.
    fn make_student(&mut self, model: Option<&str>, width: Option<f64>) -> Result<()>;

    /// Batches of an epoch of `run`.
    fn batches(run: &Run<Self::Task, Self>) -> usize {
        kiln_training::BatchSource::batches(&run.setup.data.train)
    }
}

impl Family for ClassifySettings {
    type Model = Classifier;
    type Task = crate::pipelines::Classify;

    fn into_run(self) -> Result<(Run<Self::Task, Self>, Device)> {
        let data = open_images(self.run.data.as_deref())?;
        classify_run(self, data)
    }

    fn plain(&self, lean: bool, device: &Device) -> Result<Classifier> {
        Ok(self.model.clone().with_lean(lean).init(device)?)
    }

    fn with_lean(self, lean: bool) -> Self {
        Self { model: self.model.clone().with_lean(lean), ..self }
    }

    fn own_compression(&mut self) -> &mut CompressionSettings {
        self.compression.get_or_insert_default()
    }

    fn make_student(&mut self, model: Option<&str>, width: Option<f64>) -> Result<()> {
        let (classes, channels) = (self.model.classes(), self.model.channels());
        if let Some(name) = model.filter(|name| *name != self.model.name()) {
            self.model = ClassifierConfig::named(name, classes)?.for_images(self.images.size, channels);
        }
        let whole = |least: usize| match width {
            Some(width) if width.fract() != 0.0 || width < 1.0 => {
                Err(Usage(format!("--width is {width}, expected a number of channels")))
            }
            Some(width) => Ok(width as usize),
            None => Ok(least),
        };
        match &mut self.model {
            ClassifierConfig::ResNet(config) => config.width = whole((config.width / 2).max(1))?,
            ClassifierConfig::MobileNetV2(config) => config.width = width.unwrap_or(config.width / 2.0),
            ClassifierConfig::MobileNetV3(config) => config.width = width.unwrap_or(config.width / 2.0),
            other if width.is_some() || model.is_none() => {
                bail!(Usage(format!("{} has one width, expected --model with a smaller network", other.name())))
            }
            _ => {}
        }
        Ok(())
    }

    fn forward_once(&self, model: &Classifier, device: &Device) {
        let size = self.images.size;
        model.forward(Tensor::zeros([1, self.model.channels(), size, size], device));
    }
}

impl Family for GptSettings {
    type Model = Gpt;
    type Task = crate::pipelines::NextToken;

    fn into_run(self) -> Result<(Run<Self::Task, Self>, Device)> {
        next_token_run(self)
    }

    fn plain(&self, lean: bool, device: &Device) -> Result<Gpt> {
        Ok(self.model.clone().with_lean(lean).init(device)?)
    }

    fn with_lean(self, lean: bool) -> Self {
        Self { model: self.model.clone().with_lean(lean), ..self }
    }

    fn own_compression(&mut self) -> &mut CompressionSettings {
        self.compression.get_or_insert_default()
    }

    fn make_student(&mut self, model: Option<&str>, width: Option<f64>) -> Result<()> {
        if let Some(name) = model {
            let named = GptConfig::named(name, self.model.vocab, self.model.context)?;
            self.model = GptConfig { dropout: self.model.dropout, ..named };
        }
        match width {
            Some(width) if width.fract() != 0.0 || width < 1.0 => {
                bail!(Usage(format!("--width is {width}, expected numbers per token")))
            }
            Some(width) => self.model.width = width as usize,
            None if model.is_none() => self.model.width = (self.model.width / 2).next_multiple_of(self.model.heads),
            None => {}
        }
        Ok(())
    }

    fn forward_once(&self, model: &Gpt, device: &Device) {
        model.forward(Tensor::<2, Int>::zeros([1, self.model.context], device));
    }
}

/// Settings of one of the pipelines.
pub(super) enum Source {
    Classify(Box<ClassifySettings>),
    Gpt(Box<GptSettings>),
}

/// Calls a generic function with the settings of a run.
macro_rules! with_settings {
    ($source:expr, $settings:ident => $do:expr) => {
        match $source {
            $crate::compress::family::Source::Classify($settings) => $do,
            $crate::compress::family::Source::Gpt($settings) => $do,
        }
    };
}
pub(super) use with_settings;

/// The settings of the run in the directory of the arguments, with the options that leave its model unchanged.
pub(super) fn source(arguments: &CompressArgs) -> Result<Source> {
    let file = arguments.run.join("config.toml");
    if !file.is_file() {
        bail!("'{}' is no run directory, expected a config.toml in it", printable(&arguments.run));
    }
    let table = read(&file)?;
    let name = printable(&file);
    let parsed = |error: toml::de::Error| anyhow!(Usage(format!("config '{name}' is damaged: {}", error.message())));
    let mut source = if table.contains_key("images") {
        Source::Classify(Box::new(table.try_into().map_err(parsed)?))
    } else if table.contains_key("text") {
        Source::Gpt(Box::new(table.try_into().map_err(parsed)?))
    } else {
        bail!(Usage(format!(
            "'{}' is a run of another pipeline, expected one of classify or gpt",
            printable(&arguments.run)
        )));
    };
    with_settings!(&mut source, settings => {
        let run = settings.run_mut();
        run.data = arguments.data.as_deref().map(absolute).transpose()?.map(Into::into).or(run.data.take());
        run.device = arguments.device.clone().unwrap_or_else(|| "flex".into());
        run.memory = None;
        // The start and the training options of the run do not apply to the smaller model.
        (run.init, run.from, run.patience) = (None, None, None);
        run.freeze.clear();
        if let Some(seed) = arguments.seed {
            run.seed = u64::from(seed);
        }
    });
    Ok(source)
}

/// The plain model of the run of the arguments, on `device`, without gradients.
pub(super) fn model_of<S: Family>(
    settings: &S,
    arguments: &CompressArgs,
    lean: bool,
    device: &Device,
) -> Result<S::Model> {
    let plain = settings.plain(lean, &device.clone().inner())?;
    load_merged(plain, settings.compression(), &arguments.run)
        .with_context(|| format!("cannot read the model of '{}'", printable(&arguments.run)))
}

/// Fails for data with other classes than those of the run.
pub(super) fn check_data<S: Family>(run: &Run<S::Task, S>, directory: &Path) -> Result<()> {
    match run.setup.classes.is_empty() {
        true => Ok(()),
        false => check_classes(directory, &run.setup.classes),
    }
}
