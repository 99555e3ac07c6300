//! Runs whose models can be made smaller, and how one is before.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, bail};
use burn::module::Module;
use burn::tensor::{Device, Int, Tensor};
use kiln_data::printable;
use kiln_memory::is_capture;
use kiln_models::{Classifier, ClassifierConfig, Decoder, DecoderConfig, GptConfig};
use kiln_precision::Precision;
use kiln_report::CompressionPage;
use kiln_runs::CONFIG;
use kiln_runs::replace;
use kiln_training::evaluate;

use crate::cli::{CallArgs, CompressArgs};
use crate::pipelines::classify::Network;
use crate::pipelines::{
    Classify, CompressionSettings, Findings, InitError, NextToken, Pipeline, Run, SettingsOf, WriteInto, classify,
    load_merged, next_token,
};
use crate::run_directory::check_classes;
use crate::settings_file::SettingsFile;
use crate::train::drive;
use crate::trained::Trained;
use crate::usage::Usage;

/// A pipeline whose models can be made smaller.
pub(super) trait Compressible: Pipeline {
    /// The run of the settings, and its device.
    fn open(settings: SettingsOf<Self>) -> Result<(Run<Self>, Device)>;

    /// The model of the settings.
    fn init(config: &Self::Config, device: &Device) -> Result<Self::Model>;

    /// Makes a model consist of kiln-layers' operations (`true`) or burn's own layers (`false`).
    fn set_lean(config: &mut Self::Config, lean: bool);

    /// Runs `model` on an input of one sample, of zeros.
    fn forward_once(settings: &SettingsOf<Self>, model: &Self::Model, device: &Device);

    /// Changes the settings to those of a student: another model by name, and another width. The default is half of the width.
    fn make_student(settings: &mut SettingsOf<Self>, model: Option<&str>, width: Option<f64>) -> Result<()>;

    /// The model of the settings, with kiln-layers' operations (`true`) or burn's own layers (`false`).
    fn plain(config: &Self::Config, lean: bool, device: &Device) -> Result<Self::Model> {
        let mut config = config.clone();
        Self::set_lean(&mut config, lean);
        Self::init(&config, device)
    }
}

impl Compressible for Classify {
    fn open(settings: SettingsOf<Self>) -> Result<(Run<Self>, Device)> {
        let data = classify::open(settings.run.data.as_deref())?;
        classify::run(settings, data)
    }

    fn init(config: &Network, device: &Device) -> Result<Classifier> {
        Ok(config.0.init(device)?)
    }

    fn set_lean(config: &mut Network, lean: bool) {
        *config = Network(config.0.clone().with_lean(lean));
    }

    fn forward_once(settings: &SettingsOf<Self>, model: &Classifier, device: &Device) {
        let size = settings.data.images.size;
        model.forward(Tensor::zeros([1, settings.model.channels(), size, size], device));
    }

    fn make_student(settings: &mut SettingsOf<Self>, model: Option<&str>, width: Option<f64>) -> Result<()> {
        let (classes, channels) = (settings.model.classes(), settings.model.channels());
        if let Some(name) = model.filter(|name| *name != settings.model.name()) {
            let network = ClassifierConfig::named(name, classes)?;
            settings.model = Network(network.for_images(settings.data.images.size, channels));
        }
        let whole = |least: usize| match width {
            Some(width) if width.fract() != 0.0 || width < 1.0 => {
                Err(Usage(format!("--width is {width}, expected a number of channels")))
            }
            Some(width) => Ok(width as usize),
            None => Ok(least),
        };
        match &mut settings.model.0 {
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
}

impl Compressible for NextToken {
    fn open(settings: SettingsOf<Self>) -> Result<(Run<Self>, Device)> {
        next_token::run(settings)
    }

    fn init(config: &DecoderConfig, device: &Device) -> Result<Decoder> {
        Ok(config.init(device)?)
    }

    fn set_lean(config: &mut DecoderConfig, lean: bool) {
        *config = config.clone().with_lean(lean);
    }

    fn forward_once(settings: &SettingsOf<Self>, model: &Decoder, device: &Device) {
        model.forward(Tensor::<2, Int>::zeros([1, settings.model.context()], device));
    }

    fn make_student(settings: &mut SettingsOf<Self>, model: Option<&str>, width: Option<f64>) -> Result<()> {
        let DecoderConfig::Gpt(own) = &mut settings.model else {
            bail!(Usage("no smaller sizes of the Llama family are known, expected a run of a GPT".into()))
        };
        if let Some(name) = model {
            let named = GptConfig::named(name, own.vocab, own.context)?;
            *own = GptConfig { dropout: own.dropout, ..named };
        }
        match width {
            Some(width) if width.fract() != 0.0 || width < 1.0 => {
                bail!(Usage(format!("--width is {width}, expected numbers per token")))
            }
            Some(width) => own.width = width as usize,
            None if model.is_none() => own.width = (own.width / 2).next_multiple_of(own.heads),
            None => {}
        }
        Ok(())
    }
}

/// The settings of the run in the directory of the arguments, with the options that leave its model unchanged.
pub(super) fn source(arguments: &CompressArgs) -> Result<Trained> {
    let file = arguments.run.join(CONFIG);
    if !file.is_file() {
        bail!("'{}' is no run directory, expected a {CONFIG} in it", printable(&arguments.run));
    }
    let mut source = Trained::read(&SettingsFile::read(&file)?)?;
    let run = source.run_mut();
    run.leave_training(arguments.device.as_ref());
    run.data = arguments.data.clone().or(run.data.take());
    // The start and the training options of the run do not apply to the smaller model. Masks and fake quantisation need parameters in f32.
    run.parameters = Precision::F32;
    (run.init, run.from, run.patience) = (None, None, None);
    run.freeze.clear();
    run.seed = arguments.seed.unwrap_or(run.seed);
    Ok(source)
}

/// The plain model of the run of the arguments, on `device`, without gradients.
pub(super) fn model_of<P: Compressible>(
    settings: &SettingsOf<P>,
    arguments: &CompressArgs,
    lean: bool,
    device: &Device,
) -> Result<P::Model> {
    let plain = P::plain(&settings.model, lean, &device.clone().inner())?;
    load_merged(plain, settings.compression.as_ref(), &arguments.run)
        .with_context(|| format!("cannot read the model of '{}'", printable(&arguments.run)))
}

/// The model of a run before it is made smaller.
pub(super) struct Before<P: Compressible> {
    /// The settings of the run.
    pub(super) source: SettingsOf<P>,
    /// The settings of the smaller model.
    pub(super) settings: SettingsOf<P>,
    pub(super) device: Device,
    pub(super) model: P::Model,
    pub(super) metric: f64,
    /// Batches of an epoch.
    batches: u64,
}

/// A run that was opened, and its task and data.
pub(super) type Opened<P> = (Before<P>, Run<P>);

/// Opens a run, and measures its model.
pub(super) fn before<P: Compressible>(mut settings: SettingsOf<P>, arguments: &CompressArgs) -> Result<Opened<P>> {
    let (run, device) = P::open(settings.clone())?;
    if !run.setup.classes.is_empty() {
        check_classes(&arguments.run, &run.setup.classes)?;
    }
    let model = model_of::<P>(&settings, arguments, true, &device)?;
    let metrics = evaluate(&run.task, &model, &run.setup.data.test, &device)?;
    let metric = metric_of::<P>(&metrics)?;
    tracing::info!("{} of '{}': {metric:.4}", P::METRIC, printable(&arguments.run));
    let (source, batches) = (settings.clone(), run.setup.batches());
    // The attachments of the run are merged into its model.
    let shapes = settings.compression.take().and_then(|compression| compression.shapes);
    settings.compression = Some(CompressionSettings { shapes, ..CompressionSettings::default() });
    Ok((Before { source, settings, device, model, metric, batches }, run))
}

pub(super) fn metric_of<P: Compressible>(metrics: &[(&'static str, f64)]) -> Result<f64> {
    let name = P::METRIC;
    metrics.iter().find(|(own, _)| *own == name).map(|(_, value)| *value).ok_or_else(|| anyhow!("there is no {name}"))
}

impl<P: Compressible> Before<P> {
    /// The settings that make the model smaller.
    pub(super) fn compression(&mut self) -> &mut CompressionSettings {
        self.settings.compression.get_or_insert_default()
    }

    /// Sets how long the model is trained, and its learning rate.
    pub(super) fn set_length(&mut self, arguments: &CompressArgs, default_epochs: u64, rate: f64) {
        let peak = &mut self.settings.schedule.peak;
        *peak = arguments.learning_rate.unwrap_or(*peak * rate);
        let run = &mut self.settings.run;
        run.memory = arguments.memory;
        run.epochs = arguments.epochs.unwrap_or(default_epochs);
        run.max_steps = match (arguments.max_steps, arguments.epochs) {
            (Some(steps), _) => Some(steps),
            (None, Some(_)) => None,
            // The run counts its length in steps.
            (None, None) => run.max_steps.map(|steps| (steps / 2).max(1)),
        };
    }

    /// Steps that the model is trained on.
    pub(super) fn steps(&self) -> usize {
        let run = &self.settings.run;
        let steps = run.max_steps.unwrap_or(u64::MAX).min(run.epochs.saturating_mul(self.batches));
        usize::try_from(steps).unwrap_or(usize::MAX)
    }

    /// Trains the settings' model, from `start` if there is one.
    pub(super) fn train(
        self,
        start: Option<P::Model>,
        arguments: &CompressArgs,
        findings: impl Fn(&P::Model, &Device, usize) -> Result<Findings> + 'static,
    ) -> Result<ExitCode> {
        let (mut run, device) = P::open(self.settings)?;
        if let Some(start) = start {
            let record = start.into_record();
            let init = run.init;
            run.init = Box::new(move |device| {
                let model = init(device)?;
                // The device that records steps gets no weights.
                match is_capture(device) {
                    true => Ok(model),
                    false => {
                        model.try_load_record(record.clone()).map_err(|error| InitError::Weights(error.to_string()))
                    }
                }
            });
        }
        run.findings = Some(Box::new(move |subject| match subject.whole() {
            Some(model) => findings(model, subject.device, subject.at_once),
            None => Ok(Findings::default()),
        }));
        let call = CallArgs { json: arguments.json, out: arguments.out.clone(), ..CallArgs::default() };
        drive(run, &device, &call, None)
    }
}

/// Bytes of parameters and running statistics in f32.
pub(super) fn dense_bytes(model: &impl Module) -> u64 {
    4 * model.num_params() as u64
}

/// Returns a function that writes a page into the directory of a run.
pub(super) fn written(page: CompressionPage) -> WriteInto {
    Box::new(move |directory: &Path| Ok(replace(&directory.join("compression.html"), page.html().as_bytes())?))
}
