//! Settings of the pipelines, in the format of a run's `config.toml`.

use std::path::PathBuf;

use kiln_data::{BadSamples, Damage, LoaderConfig, Normalize, Quality, Replica, TokenizerKind};
use kiln_models::{ClassifierConfig, GptConfig, UnetConfig};
use kiln_precision::{Policy, Precision};
use kiln_training::{BatchScaling, Intervals, OptimizerConfig, Recompute, ScheduleConfig};
use serde::{Deserialize, Deserializer, Serialize};

use super::compression::CompressionSettings;
use super::parallel::{ParallelSettings, Places, Replicas};
use super::sizes::{LoaderMemory, MemorySetting};
use crate::device_name::canonical;
use crate::usage::Usage;
use crate::words::counted;

/// Settings of every run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunSettings {
    /// The data set. `None` is the one in fixtures/.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<PathBuf>,
    /// The device by name: flex or cuda:N.
    #[serde(deserialize_with = "device_name")]
    pub device: String,
    /// The seed of all randomness.
    pub seed: u64,
    /// Passes over the data.
    pub epochs: u64,
    /// Steps at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_steps: Option<u64>,
    /// Samples of a batch.
    pub batch_size: usize,
    /// Samples on the device at once. `None`: the whole batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub micro_batch: Option<usize>,
    /// The precision that the model computes in.
    #[serde(default)]
    pub precision: Precision,
    /// The blocks that are recomputed.
    #[serde(default)]
    pub checkpointing: Recompute,
    /// Bytes that a step may take. `None`: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemorySetting>,
    /// The global norm that gradients are clipped to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_norm: Option<f64>,
    /// Threads that load data.
    pub workers: usize,
    /// Bytes on the host for batches in flight and images being decoded.
    #[serde(default)]
    pub loader_memory: LoaderMemory,
    /// What happens to samples that cannot be read.
    #[serde(default = "fail")]
    pub bad_samples: BadSamples,
    /// Steps between two evaluations within an epoch; 0: none.
    pub evaluate_every: u64,
    /// Steps between two checkpoints within an epoch; 0: none.
    pub save_every: u64,
    /// Checkpoints that are kept.
    pub keep: usize,
    /// Whether the optimizer's state is in host memory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optimizer_offload: bool,
    /// The batch that the learning rate is meant for. `None`: that of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_scaling: Option<BatchScaling>,
    /// The run ends after this many evaluations in a row without a better value of the main metric. `None` or 0: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patience: Option<u64>,
    /// A safetensors file, or a run directory, with the initial weights of the model. Those that fit are used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init: Option<PathBuf>,
    /// The run, or its checkpoint, that gave the initial weights and optimizer state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<PathBuf>,
    /// Paths of parameters and modules that are not trained.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub freeze: Vec<String>,
    /// Whether a checkpoint has the initial weights of the run, so that no other file is read for them.
    #[serde(skip)]
    pub begun: bool,
    /// How the run is divided among devices.
    #[serde(default, skip_serializing_if = "ParallelSettings::is_none")]
    pub parallel: ParallelSettings,
    /// The index of this replica.
    #[serde(skip)]
    pub replica: Replica,
}

fn device_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    String::deserialize(deserializer).map(|name| canonical(&name))
}

fn fast() -> Quality {
    Quality::Fast
}

fn fail() -> BadSamples {
    BadSamples::FAIL
}

/// The smallest share of a memory budget for the loader.
const LEAST_LOADER_BYTES: u64 = 8 << 20;

impl RunSettings {
    /// Default settings of a run whose recipe does not say otherwise.
    pub fn new(epochs: u64, batch_size: usize) -> Self {
        Self {
            data: None,
            device: "flex".into(),
            seed: 1,
            epochs,
            max_steps: None,
            batch_size,
            micro_batch: None,
            precision: Precision::F32,
            checkpointing: Recompute::None,
            memory: None,
            clip_norm: Some(5.0),
            workers: 2,
            loader_memory: LoaderMemory::default(),
            bad_samples: BadSamples::FAIL,
            evaluate_every: 0,
            save_every: 500,
            keep: 3,
            optimizer_offload: false,
            batch_scaling: None,
            patience: None,
            init: None,
            from: None,
            freeze: vec![],
            begun: false,
            parallel: ParallelSettings::default(),
            replica: Replica::ALONE,
        }
    }

    /// Limits the batch to a data set of `samples` samples, and adapts it to the number of replicas.
    ///
    /// # Errors
    /// [`Usage`] for a micro-batch that is larger than the batch.
    pub fn fit_batch(&mut self, samples: usize) -> Result<(), Usage> {
        if let Some(micro_batch) = self.micro_batch.filter(|micro_batch| *micro_batch > self.batch_size) {
            let batch = self.batch_size;
            return Err(Usage(format!(
                "--micro-batch is {micro_batch}, expected at most the {} of a batch",
                counted(batch, "sample")
            )));
        }
        let most = samples - samples % self.replica.count();
        if self.batch_size > most && most > 0 {
            if self.replica.index() == 0 {
                tracing::warn!(
                    "the data set has {}: batches of {most}, not of {}",
                    counted(samples, "sample"),
                    self.batch_size
                );
            }
            self.batch_size = most;
            self.micro_batch = self.micro_batch.map(|micro_batch| micro_batch.min(most));
        }
        Ok(())
    }

    /// A loader of `samples` samples in their order. A batch is never larger than all of them. On the CPU device, whose memory is the
    /// host's, the loader takes at most a quarter of the run's memory budget.
    pub fn loader(&self, samples: usize) -> LoaderConfig {
        let budget = match self.memory {
            Some(MemorySetting::Bytes(bytes)) if self.device == "flex" => {
                self.loader_memory.0.min((bytes / 4).max(LEAST_LOADER_BYTES))
            }
            _ => self.loader_memory.0,
        };
        LoaderConfig::new(self.batch_size.min(samples))
            .with_workers(self.workers)
            .with_prefetch((2 * self.workers).max(4))
            .with_budget(budget)
            .with_bad_samples(self.bad_samples)
    }

    /// The name of the device that this replica, or its first stage, computes on.
    pub fn own_device(&self) -> &str {
        match (&self.parallel.replicas, &self.parallel.stages) {
            (Some(Replicas { here, .. }), _) => here.device(self.replica.index() % here.count(), &self.device),
            (None, Some(stages @ Places::Devices(_))) => stages.device(0, &self.device),
            _ => &self.device,
        }
    }

    /// The precision policy of the model. The models compute their norms in f32.
    pub fn policy(&self) -> Policy {
        Policy::new(self.precision).keep_norms()
    }

    /// When to evaluate and save, in addition to the ends of epochs.
    pub fn every(&self) -> Intervals {
        Intervals::default().with_evaluation(self.evaluate_every).with_checkpoint(self.save_every)
    }
}

/// Settings of `train classify`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassifySettings {
    /// Settings of every run.
    pub run: RunSettings,
    /// How images reach the model.
    pub images: ImageSettings,
    /// The model.
    #[serde(with = "super::model")]
    pub model: ClassifierConfig,
    /// The optimizer.
    pub optimizer: OptimizerConfig,
    /// The learning rate.
    pub schedule: ScheduleConfig,
    /// How the model is made smaller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<CompressionSettings>,
}

/// How images reach the model.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageSettings {
    /// Pixels per side.
    pub size: usize,
    /// Whether an image is shrunk from all of its pixels or from some of them.
    #[serde(default = "fast")]
    pub decode: Quality,
    /// The policy for damaged images that are still readable.
    #[serde(default)]
    pub damaged_images: Damage,
    /// Smallest part of an image that a training crop may show.
    pub min_area: f64,
    /// Probability mass spread over all classes.
    pub label_smoothing: f64,
    /// Alpha of mixup; 0: off.
    #[serde(default)]
    pub mixup: f64,
    /// Alpha of CutMix; 0: off.
    #[serde(default)]
    pub cutmix: f64,
    /// Probability of overwriting a rectangle of a training image with noise.
    #[serde(default)]
    pub erase: f64,
}

/// Settings of `train gpt`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GptSettings {
    /// Settings of every run.
    pub run: RunSettings,
    /// How text reaches the model.
    pub text: TextSettings,
    /// The model.
    pub model: GptConfig,
    /// The optimizer.
    pub optimizer: OptimizerConfig,
    /// The learning rate.
    pub schedule: ScheduleConfig,
    /// How the model is made smaller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<CompressionSettings>,
}

/// How text reaches the model.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextSettings {
    /// The tokenizer.
    pub tokenizer: TokenizerKind,
    /// Fraction at the end of the text that is held out.
    pub held_out: f64,
}

/// Settings of `train segment`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SegmentSettings {
    /// Settings of every run.
    pub run: RunSettings,
    /// How images reach the model.
    pub tiles: TileSettings,
    /// The loss.
    pub loss: LossSettings,
    /// The model.
    pub model: UnetConfig,
    /// The optimizer.
    pub optimizer: OptimizerConfig,
    /// The learning rate.
    pub schedule: ScheduleConfig,
}

/// How large images reach the model.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TileSettings {
    /// Rows and columns of a tile, a multiple of 32.
    pub size: usize,
    /// The least number of rows and columns that neighbouring tiles share: in training, and in predictions.
    pub overlap: [usize; 2],
    /// The class id of ignored pixels: a number, or "none".
    pub ignore: IgnoredClass,
    /// Whether images have samples of 8 bits, which are scaled to [0, 1].
    pub eight_bit: bool,
    /// Mean and deviation of each band, measured on some training tiles when the run began.
    pub normalize: Normalize,
}

/// The class id of ignored pixels, in its written form: a number or `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "IgnoredText", into = "IgnoredText")]
pub struct IgnoredClass(pub Option<u16>);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum IgnoredText {
    Id(u16),
    Text(String),
}

impl From<IgnoredClass> for IgnoredText {
    fn from(IgnoredClass(id): IgnoredClass) -> Self {
        id.map_or(Self::Text("none".into()), Self::Id)
    }
}

impl TryFrom<IgnoredText> for IgnoredClass {
    type Error = String;

    fn try_from(text: IgnoredText) -> Result<Self, String> {
        match text {
            IgnoredText::Id(id) => Ok(Self(Some(id))),
            IgnoredText::Text(text) => text.parse(),
        }
    }
}

impl std::str::FromStr for IgnoredClass {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse()) {
            ("none", _) => Ok(Self(None)),
            (_, Ok(id)) => Ok(Self(Some(id))),
            _ => Err(format!("the ignored class is '{text}', expected none or a class id from 0 to 65535")),
        }
    }
}

/// The loss of a segmentation.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossSettings {
    /// Factor of the cross-entropy.
    pub cross_entropy: f64,
    /// Factor of the Dice loss.
    pub dice: f64,
    /// Weights of the classes in the cross-entropy. `None`: all 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class_weights: Option<Vec<f32>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_never_larger_than_the_data() {
        let run = |samples, replicas| {
            let mut run = RunSettings::new(1, 64);
            run.replica = Replica::new(0, replicas).unwrap();
            run.micro_batch = Some(32);
            run.fit_batch(samples).unwrap();
            (run.batch_size, run.micro_batch)
        };
        assert_eq!(run(64, 1), (64, Some(32)));
        assert_eq!(run(41, 1), (41, Some(32)));
        assert_eq!(run(41, 2), (40, Some(32)));
        assert_eq!(run(9, 1), (9, Some(9)));
        let mut run = RunSettings { micro_batch: Some(65), ..RunSettings::new(1, 64) };
        assert!(run.fit_batch(1000).unwrap_err().0.contains("--micro-batch is 65"));
    }
}
