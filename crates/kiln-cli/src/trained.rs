//! The trained model that a command uses: its pipeline, settings, weights and classes.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use kiln_data::printable;
use kiln_training::Checkpoints;
use serde::de::DeserializeOwned;
use toml::Table;

use crate::cli::TrainedArgs;
use crate::pipelines::{
    CHECKPOINTS, ClassifySettings, CompressionSettings, GptSettings, INPUT_RANGES, Kind, QUANTIZED, RunSettings,
    SegmentSettings, best_of, settings_beside,
};
use crate::train::directory::CLASSES;
use crate::train::overlay::read;
use crate::usage::Usage;
use crate::words::counted;

/// The settings of a run of one of the pipelines.
pub(crate) enum Trained {
    Classify(Box<ClassifySettings>),
    Segment(Box<SegmentSettings>),
    Gpt(Box<GptSettings>),
}

impl Trained {
    /// Reads the settings of the run that the arguments name, with the device from the arguments.
    pub(crate) fn open(arguments: &TrainedArgs) -> Result<Self> {
        let run = &arguments.run;
        if !run.exists() {
            bail!("cannot load '{}': no such file or directory", printable(&run));
        }
        let file = match &arguments.config {
            Some(file) => file.clone(),
            None => settings_beside(run).with_context(|| {
                format!("no config.toml beside or above '{}', expected one, or --config", printable(&run))
            })?,
        };
        let table = read(&file)?;
        let mut trained = match Kind::of(&table) {
            Some(Kind::Classify) => Self::Classify(parsed(table, &file)?),
            Some(Kind::Segment) => Self::Segment(parsed(table, &file)?),
            Some(Kind::Gpt) => Self::Gpt(parsed(table, &file)?),
            None => bail!(Usage(format!(
                "config '{}' is not of a run, expected a table [images], [tiles] or [text]",
                printable(&file)
            ))),
        };
        let run = trained.run_mut();
        run.device = arguments.device.clone().unwrap_or_else(|| "flex".into());
        run.memory = None; // it is that of steps
        Ok(trained)
    }

    fn run_mut(&mut self) -> &mut RunSettings {
        match self {
            Self::Classify(settings) => &mut settings.run,
            Self::Segment(settings) => &mut settings.run,
            Self::Gpt(settings) => &mut settings.run,
        }
    }

    /// The kind of the model, for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Classify(_) => Kind::Classify.model(),
            Self::Segment(_) => Kind::Segment.model(),
            Self::Gpt(_) => Kind::Gpt.model(),
        }
    }
}

fn parsed<S: DeserializeOwned>(table: Table, file: &Path) -> Result<Box<S>> {
    table.try_into().map(Box::new).map_err(|error: toml::de::Error| {
        Usage(format!("config '{}' is damaged: {}", printable(&file), error.message())).into()
    })
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
    let file = run.join("model.safetensors");
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

/// The names of the `count` classes of a run, from the directory around its weights. `None` if the run does not name them.
pub(crate) fn classes(run: &Path, count: usize) -> Result<Option<Vec<String>>> {
    let Some(file) = settings_beside(run).map(|config| config.with_file_name(CLASSES)).filter(|file| file.is_file())
    else {
        return Ok(None);
    };
    let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read '{}'", printable(&file)))?;
    let names: Vec<String> = text.lines().map(str::to_owned).collect();
    if names.len() != count {
        bail!("'{}' has {}, expected {count} as the model", printable(&file), counted(names.len(), "class"));
    }
    Ok(Some(names))
}
