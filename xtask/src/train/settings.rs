//! A run's settings: defaults of the recipe, overlaid by a TOML file, overlaid by the command line.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kiln_data::{BadSamples, LoaderConfig, Quality, TokenizerKind};
use kiln_models::{GptConfig, ResNetConfig};
use kiln_precision::{Policy, Precision};
use kiln_training::{Every, OptimizerConfig, ScheduleConfig};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::budget::Memory;
use super::checkpointing::{Checkpointing, parse_bytes};
use crate::cli::RunArgs;
use crate::usage::Usage;

/// What every run has.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunSettings {
    /// The data set; none is the one in fixtures/.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) data: Option<PathBuf>,
    pub(crate) device: String,
    pub(crate) seed: u64,
    pub(crate) epochs: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_steps: Option<u64>,
    pub(crate) batch_size: usize,
    /// Samples on the device at once; none: the whole batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) micro_batch: Option<usize>,
    #[serde(default)]
    pub(crate) precision: Precision,
    #[serde(default)]
    pub(crate) checkpointing: Checkpointing,
    /// Bytes that a step may take; none: as many as there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) memory: Option<Memory>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) clip_norm: Option<f64>,
    pub(crate) workers: usize,
    /// Bytes on the host for batches in flight and images being decoded.
    #[serde(default)]
    pub(crate) loader_memory: LoaderMemory,
    /// What happens to samples that cannot be read.
    #[serde(default = "fail")]
    pub(crate) bad_samples: BadSamples,
    pub(crate) evaluate_every: u64,
    pub(crate) save_every: u64,
    pub(crate) keep: usize,
}

fn fast() -> Quality {
    Quality::Fast
}

fn fail() -> BadSamples {
    BadSamples::FAIL
}

/// A number of bytes, as in 256MiB.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct LoaderMemory(pub(crate) u64);

impl Default for LoaderMemory {
    fn default() -> Self {
        Self(1 << 30)
    }
}

impl TryFrom<String> for LoaderMemory {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let refused = || format!("loader memory is '{text}', expected bytes, as in 256MiB or 2GiB");
        parse_bytes(&text).map(Self).ok_or_else(refused)
    }
}

impl From<LoaderMemory> for String {
    fn from(memory: LoaderMemory) -> Self {
        memory.0.to_string()
    }
}

/// Settings of `train resnet`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResnetSettings {
    pub(crate) run: RunSettings,
    pub(crate) images: ImageSettings,
    pub(crate) model: ResNetConfig,
    pub(crate) optimizer: OptimizerConfig,
    pub(crate) schedule: ScheduleConfig,
}

/// How images reach the model.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ImageSettings {
    /// Pixels per side.
    pub(crate) size: usize,
    /// From how many of its pixels an image is made smaller.
    #[serde(default = "fast")]
    pub(crate) decode: Quality,
    /// Smallest part of an image that a training crop may show.
    pub(crate) min_area: f64,
    /// Probability mass spread over all classes.
    pub(crate) label_smoothing: f64,
}

/// Settings of `train gpt`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GptSettings {
    pub(crate) run: RunSettings,
    pub(crate) text: TextSettings,
    pub(crate) model: GptConfig,
    pub(crate) optimizer: OptimizerConfig,
    pub(crate) schedule: ScheduleConfig,
}

/// How text reaches the model.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TextSettings {
    pub(crate) tokenizer: TokenizerKind,
    /// Fraction at the end of the text that is held out.
    pub(crate) held_out: f64,
}

/// Settings of either pipeline.
pub(crate) trait Settings: Serialize {
    /// What every run has.
    fn run(&self) -> &RunSettings;

    /// The same, to be changed before the run starts.
    fn run_mut(&mut self) -> &mut RunSettings;
}

impl Settings for ResnetSettings {
    fn run(&self) -> &RunSettings {
        &self.run
    }

    fn run_mut(&mut self) -> &mut RunSettings {
        &mut self.run
    }
}

impl Settings for GptSettings {
    fn run(&self) -> &RunSettings {
        &self.run
    }

    fn run_mut(&mut self) -> &mut RunSettings {
        &mut self.run
    }
}

impl RunSettings {
    /// A run that adapts to the memory also adapts to the data: a batch is at most all of it.
    pub(crate) fn clamp(&mut self, samples: usize) {
        if self.memory.is_some() && self.batch_size > samples && samples > 0 {
            tracing::warn!("there are {samples} samples: batches of {samples}, not of {}", self.batch_size);
            self.batch_size = samples;
        }
    }

    /// Bytes of `batches` batches on the host at a time: waiting, being made, and in use.
    pub(crate) fn bytes_in_flight(&self, batch: u64, batches: usize) -> u64 {
        let most = (self.loader(usize::MAX).prefetch + 1).min(batches) as u64;
        batch.saturating_mul(most).min(self.loader_memory.0 / 2)
    }

    /// A loader of `samples` samples in their order; a batch is never larger than all of them.
    pub(crate) fn loader(&self, samples: usize) -> LoaderConfig {
        let prefetch = (2 * self.workers).max(4);
        LoaderConfig {
            workers: self.workers,
            prefetch,
            budget: self.loader_memory.0,
            bad_samples: self.bad_samples,
            ..LoaderConfig::new(self.batch_size.min(samples))
        }
    }

    /// The precision that the model computes in. The models run their norms in f32.
    pub(crate) fn policy(&self) -> Policy {
        Policy::new(self.precision).keep_norms()
    }

    /// When to measure and save besides the ends of epochs.
    pub(crate) fn every(&self) -> Every {
        Every { evaluate: self.evaluate_every, save: self.save_every }
    }
}

impl RunArgs {
    /// What was given on the command line, in the shape of the file.
    pub(crate) fn overlay(&self) -> Overlay {
        let mut overlay = Overlay::default();
        overlay.set("run", "data", self.data.as_deref().map(absolute));
        overlay.set("run", "device", self.device.clone());
        overlay.set("run", "seed", self.seed.map(i64::from));
        overlay.set("run", "epochs", self.epochs.map(i64::from));
        overlay.set("run", "max_steps", self.max_steps.map(i64::from));
        overlay.set("run", "batch_size", self.batch_size.map(i64::from));
        overlay.set("run", "micro_batch", self.micro_batch.map(i64::from));
        overlay.set("run", "precision", self.precision.clone());
        overlay.set("run", "checkpointing", self.checkpointing.clone());
        overlay.set("run", "memory", self.memory.clone());
        overlay.set("run", "clip_norm", self.clip_norm);
        overlay.set("run", "workers", self.workers.map(i64::from));
        overlay.set("run", "loader_memory", self.loader_memory.clone());
        overlay.set("run", "bad_samples", self.bad_samples.clone());
        overlay.set("run", "evaluate_every", self.evaluate_every.map(i64::from));
        overlay.set("run", "save_every", self.save_every.map(i64::from));
        overlay.set("run", "keep", self.keep.map(i64::from));
        overlay.set("schedule", "peak", self.learning_rate);
        overlay
    }
}

/// Some settings, as tables of values.
#[derive(Default)]
pub(crate) struct Overlay(Table);

impl Overlay {
    pub(crate) fn set(&mut self, table: &str, key: &str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            let table = self.0.entry(table).or_insert_with(|| Value::Table(Table::new()));
            if let Value::Table(table) = table {
                table.insert(key.to_owned(), value.into());
            }
        }
    }
}

/// A settings file as it stands, but for the paths of the data set and the tokenizer, which become absolute as on the
/// command line.
pub(crate) fn read(path: &Path) -> Result<Table> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read config '{}'", path.display()))?;
    let mut table: Table = text
        .parse()
        .map_err(|e: toml::de::Error| Usage(format!("config '{}' is not TOML: {}", path.display(), e.message())))?;
    for keys in [&["run", "data"][..], &["text", "tokenizer", "bpe"]] {
        let value = keys[1..].iter().fold(table.get_mut(keys[0]), |value, key| value?.get_mut(*key));
        if let Some(Value::String(path)) = value {
            *path = absolute(Path::new(path.as_str()));
        }
    }
    Ok(table)
}

/// A path that means the same from another directory: a run is resumed and evaluated from anywhere.
pub(crate) fn absolute(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}

/// The data set that a settings file names.
pub(crate) fn data_of(file: Option<&(&Path, Table)>) -> Option<PathBuf> {
    file?.1.get("run")?.get("data")?.as_str().map(PathBuf::from)
}

/// `defaults`, overlaid by `file`, overlaid by the command line. A run that goes on has no defaults: all its
/// settings are in its file.
pub(crate) fn resolve<S: Serialize + DeserializeOwned>(
    defaults: Option<&S>,
    file: Option<(&Path, Table)>,
    arguments: Overlay,
) -> Result<S> {
    let mut all = defaults.map(Table::try_from).transpose()?.unwrap_or_default();
    let origin = file.as_ref().map(|(path, _)| format!("config '{}'", path.display()));
    merge(&mut all, file.map(|(_, table)| table).unwrap_or_default());
    if let Some(origin) = origin {
        let _: S = parse(all.clone(), &origin)?; // what is wrong with the file is not the command line's fault
    }
    merge(&mut all, arguments.0);
    parse(all, "command line")
}

fn parse<S: DeserializeOwned>(all: Table, origin: &str) -> Result<S> {
    all.try_into().map_err(|e: toml::de::Error| {
        let text = e.to_string();
        let key = text.lines().find_map(|line| line.trim().strip_prefix("in `"));
        let place = key.map_or(String::new(), |key| format!(" in [{}]", key.trim_end_matches('`')));
        Usage(format!("{origin}{place}: {}", e.message())).into()
    })
}

fn merge(base: &mut Table, over: Table) {
    for (key, value) in over {
        match (base.get_mut(&key), value) {
            // An optimizer is one of several with different keys: the new one takes the place of the old.
            (Some(Value::Table(base)), Value::Table(over)) if key != "optimizer" => merge(base, over),
            (_, value) => drop(base.insert(key, value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_paths_in_a_file_become_absolute() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.toml");
        std::fs::write(&path, "[run]\ndata = 'a/text'\nseed = 3\n[text]\ntokenizer = { bpe = 'a/tokenizer' }\n")
            .unwrap();
        let here = std::env::current_dir().unwrap();
        let table = read(&path).unwrap();
        let shown = |name: &str| here.join(name).display().to_string();
        assert_eq!(table["run"]["data"].as_str(), Some(&*shown("a/text")));
        assert_eq!(table["text"]["tokenizer"]["bpe"].as_str(), Some(&*shown("a/tokenizer")));
        // What has no such path stays as it is.
        for text in ["[text]\ntokenizer = 'bytes'\n", "run = 7\n", ""] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(read(&path).unwrap(), text.parse::<Table>().unwrap());
        }
    }
}
