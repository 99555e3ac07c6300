//! The trained model that a command uses: its pipeline, settings and weights.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use kiln_data::printable;
use kiln_runs::CHECKPOINTS;
use kiln_training::Checkpoints;

use crate::cli::TrainedArgs;
use crate::pipelines::{
    Classify, ClassifySettings, CompressionSettings, GptSettings, INPUT_RANGES, Kind, MODEL, NextToken, Pipeline,
    QUANTIZED, RunSettings, Segment, SegmentSettings, best_of,
};
use crate::settings_file::SettingsFile;
use crate::usage::Usage;

/// The settings of a run of one of the pipelines.
pub(crate) enum Trained {
    Classify(Box<ClassifySettings>),
    Segment(Box<SegmentSettings>),
    Gpt(Box<GptSettings>),
}

impl Trained {
    /// The settings in a file, by the table that tells their pipeline.
    ///
    /// # Errors
    /// [`Usage`] for the settings of no pipeline, and those that are damaged.
    pub(crate) fn read(file: &SettingsFile) -> Result<Self> {
        let is = |kind: Kind| kind.has(&file.tables);
        if is(Classify::KIND) {
            Ok(Self::Classify(Box::new(file.settings::<Classify>()?)))
        } else if is(Segment::KIND) {
            Ok(Self::Segment(Box::new(file.settings::<Segment>()?)))
        } else if is(NextToken::KIND) {
            Ok(Self::Gpt(Box::new(file.settings::<NextToken>()?)))
        } else {
            let origin = file.origin();
            bail!(Usage(format!("{origin} is not of a run, expected a table [images], [tiles] or [text]")))
        }
    }

    /// Reads the settings of the run that the arguments name, with the device from the arguments.
    pub(crate) fn open(arguments: &TrainedArgs) -> Result<Self> {
        let mut trained = Self::read(&SettingsFile::of_checkpoint(&arguments.run, arguments.config.as_ref())?)?;
        trained.run_mut().leave_training(arguments.device.as_ref());
        Ok(trained)
    }

    /// The settings of every run.
    pub(crate) fn run_mut(&mut self) -> &mut RunSettings {
        match self {
            Self::Classify(settings) => &mut settings.run,
            Self::Segment(settings) => &mut settings.run,
            Self::Gpt(settings) => &mut settings.run,
        }
    }

    /// The kind of the model, for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Classify(_) => Classify::KIND.model,
            Self::Segment(_) => Segment::KIND.model,
            Self::Gpt(_) => NextToken::KIND.model,
        }
    }
}

/// The best checkpoint of a run, for `--best`.
pub(crate) fn best(run: &Path) -> Result<PathBuf> {
    if !run.is_dir() {
        let path = printable(&run);
        bail!(Usage(format!("--best takes the best checkpoint of a run, and '{path}' is no run directory")));
    }
    best_of(run)
}

/// The weights that the arguments name: the best checkpoint of a run, or the run itself if it has a checkpoint or quantised weights, or
/// else its `model.safetensors`. A run that was copied without its checkpoints still has the latter.
pub(crate) fn weights(arguments: &TrainedArgs) -> Result<PathBuf> {
    let run = &arguments.run;
    if arguments.best {
        return best(run);
    }
    let file = run.join(MODEL);
    let is_alone = file.is_file() && !run.join("manifest.json").exists() && !run.join(QUANTIZED).exists();
    match is_alone && Checkpoints::new(run.join(CHECKPOINTS), 1)?.newest()?.is_none() {
        true => Ok(file),
        false => Ok(run.to_owned()),
    }
}

/// Whether the inputs of layers are quantised as well. The weights of such a model cannot be merged without a change of its results.
pub(crate) fn simulates_inputs(compression: Option<&CompressionSettings>, run: &Path) -> bool {
    let in_training = compression.and_then(|own| own.quantize.as_ref()).is_some_and(|own| own.input_momentum.is_some());
    in_training || run.join(INPUT_RANGES).is_file()
}
