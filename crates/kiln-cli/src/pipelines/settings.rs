//! Settings of every run, in the format of its `config.toml`. The fields are the options of the command line as well.

use std::path::PathBuf;

use clap::Args;
use kiln_data::{BadSamples, LoaderConfig, Replica};
use kiln_precision::{Policy, Precision};
use kiln_report::counted;
use kiln_training::{BatchScaling, Exact, Intervals, OptimizerConfig, Recompute, ScheduleConfig};
use serde::{Deserialize, Deserializer, Serialize};

use super::compression::CompressionSettings;
use super::parallel::{ParallelSettings, Places, Replicas};
use crate::device;
use crate::usage::Usage;
use crate::values::{EXACT, LoaderMemory, MemorySetting, PARAMETERS, PRECISION, absolute_path, number};

/// Settings of a run: the tables of every pipeline, and those of one of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings<Data, Model> {
    /// Settings of every run.
    pub run: RunSettings,
    /// How data reach the model, and the loss: tables of one pipeline.
    #[serde(flatten)]
    pub data: Data,
    /// The model.
    pub model: Model,
    /// The optimizer.
    pub optimizer: OptimizerConfig,
    /// The learning rate.
    pub schedule: ScheduleConfig,
    /// How the model is made smaller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<CompressionSettings>,
}

/// Settings of every run. What is not given comes from --config, then from the recipe.
#[derive(Args, Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunSettings {
    /// Data set [default: the small one of the project]
    #[arg(long, value_name = "PATH", value_parser = absolute_path(), help_heading = "Data")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<PathBuf>,
    /// Where to compute.
    #[arg(long, value_parser = device::parse, help = device::help())]
    #[serde(deserialize_with = "any_device_name")]
    pub device: String,
    /// Random seed [default: 1]
    #[arg(long, value_name = "N", value_parser = number::<u64>, help_heading = "Training")]
    pub seed: u64,
    /// Passes over the data
    #[arg(long, value_name = "N", value_parser = number::<u64>, help_heading = "Training")]
    pub epochs: u64,
    /// Stop after this many steps, even within an epoch
    #[arg(long, value_name = "N", value_parser = number::<u64>, help_heading = "Training")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_steps: Option<u64>,
    /// Samples per step
    #[arg(long, visible_alias = "bs", alias = "batch", value_name = "N", value_parser = number::<usize>, help_heading = "Training")]
    pub batch_size: usize,
    /// Samples on the device at once [default: the batch]
    ///
    /// A larger batch is cut into micro-batches, whose gradients are added up.
    #[arg(long, value_name = "N", value_parser = number::<usize>, help_heading = "Memory")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub micro_batch: Option<usize>,
    /// Whether a budget may change bits [default: where-possible; --exact alone: always]
    ///
    /// where-possible: a budget changes no bit of a GPT or Llama on one CPU, and cuts batches of other models into micro-batches, which changes
    /// bits. always: batches of other models stay whole, or as --micro-batch says, and blocks are recomputed and streamed; replicas have the
    /// bits of one device. never: gradients are summed by micro-batches.
    #[arg(long, value_parser = EXACT, value_name = "WHEN", num_args = 0..=1, require_equals = true, default_missing_value = "always",
        help_heading = "Memory")]
    #[serde(default)]
    pub exact: Exact,
    /// What layers compute in; f16 has a dynamic loss scale [default: f32]
    ///
    /// Also accepted: fp32 and float32; fp16, float16, half and amp; bfloat16.
    #[arg(long, value_parser = PRECISION, value_name = "NAME", help_heading = "Precision")]
    #[serde(default)]
    pub precision: Precision,
    /// What parameters are stored in; bf16 with --precision bf16 [default: f32]
    ///
    /// In bf16 there is no copy in f32: an update is computed in f32 and rounded stochastically. Norms and embeddings stay f32.
    #[arg(long, value_parser = PARAMETERS, value_name = "NAME", help_heading = "Precision")]
    #[serde(default, skip_serializing_if = "is_f32")]
    pub parameters: Precision,
    /// Gradient checkpointing: recompute activations [default: none]
    ///
    /// none, every:K blocks, sqrt, offload, or auto:SIZE: the fastest plan whose step is predicted to stay within a size,
    /// as in auto:140MiB.
    #[arg(long, value_name = "PLAN", help_heading = "Memory")]
    #[serde(default)]
    pub checkpointing: Recompute,
    /// Memory that the run may take, as in 300MiB, or auto [default: no limit]
    ///
    /// Picks micro-batch and checkpoint plan before the first step, and cuts batches smaller when memory runs out all the
    /// same. On the CPU these are the bytes that the whole process has in memory (on Linux), and step:300MiB those of a step.
    /// auto is nine tenths of the memory that is free.
    #[arg(long, value_name = "SIZE", help_heading = "Memory")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemorySetting>,
    /// Directory for parameters, gradients and optimizer state that do not fit [default: store, in that of the run]
    ///
    /// If nothing fits into --memory otherwise, blocks are streamed from there. After each step it has the whole run, which
    /// --resume goes on with.
    #[arg(long, value_name = "DIR", value_parser = absolute_path(), help_heading = "Memory")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<PathBuf>,
    /// Scale gradients down to this global norm
    #[arg(long, value_name = "NORM", help_heading = "Training")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_norm: Option<f64>,
    /// Threads that load data
    #[arg(long, value_name = "N", value_parser = number::<usize>, help_heading = "Data")]
    pub workers: usize,
    /// Host memory for batches that wait and images being decoded [default: 1GiB]
    #[arg(long, value_name = "SIZE", help_heading = "Data")]
    #[serde(default)]
    pub loader_memory: LoaderMemory,
    /// What to do about samples that cannot be read [default: fail]
    ///
    /// fail ends the run, skip:N leaves out at most N of them, and substitute:N puts other samples in their places.
    #[arg(long, value_name = "POLICY", help_heading = "Data")]
    #[serde(default = "fail")]
    pub bad_samples: BadSamples,
    /// Measure the model every N steps besides the end of each epoch (0: only then)
    #[arg(long, value_name = "N", value_parser = number::<u64>, help_heading = "Training")]
    pub evaluate_every: u64,
    /// Save a checkpoint every N steps besides the end of each epoch [default: 500]
    #[arg(long, value_name = "N", value_parser = number::<u64>, help_heading = "Checkpoints")]
    pub save_every: u64,
    /// Keep the newest N checkpoints, and the best one in any case [default: 3]
    #[arg(long, value_name = "N", value_parser = number::<usize>, help_heading = "Checkpoints")]
    pub keep: usize,
    /// Keep the optimizer's state in host memory; the numbers stay the same
    ///
    /// A parameter's state is copied to the device while the parameter is updated.
    #[arg(long, help_heading = "Memory")]
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optimizer_offload: bool,
    /// The batch that the learning rate is meant for. `None`: that of the run. From --base-batch and --batch-rule.
    #[arg(skip)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_scaling: Option<BatchScaling>,
    /// End the run after N evaluations in a row without a better result (0: never) [default: 0]
    ///
    /// The result is val_accuracy, val_miou or bits_per_byte.
    #[arg(long, value_name = "N", value_parser = number::<u64>, help_heading = "Training")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patience: Option<u64>,
    /// Divide the learning rate by 10 after N evaluations in a row without a better result (0: never) [default: 0]
    ///
    /// Again after N more; for --schedule constant.
    #[arg(long, value_name = "N", value_parser = number::<u64>, help_heading = "Training")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reduce_after: Option<u64>,
    /// Begin with the weights of a .safetensors file, a run or a checkpoint [default: random]
    ///
    /// The names are those of torchvision, timm or Hugging Face. Weights that fit are taken; a layer for another number of
    /// classes is new. All of a checkpoint must fit.
    #[arg(long, alias = "weights", value_name = "PATH", value_parser = absolute_path(), conflicts_with = "from", help_heading = "Model")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init: Option<PathBuf>,
    /// Begin a new run with weights, optimizer state and settings of RUN
    #[arg(long, value_name = "RUN", value_parser = absolute_path(), conflicts_with_all = ["resume", "config"], help_heading = "Checkpoints")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<PathBuf>,
    /// Do not train parameters whose paths begin with PATH, as layer1
    ///
    /// Several paths are separated by commas, or the option is given again.
    #[arg(long, value_name = "PATH", value_delimiter = ',', help_heading = "Training")]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub freeze: Vec<String>,
    /// Whether a checkpoint has the initial weights of the run, so that no other file is read for them.
    #[arg(skip)]
    #[serde(skip)]
    pub weights_in_checkpoint: bool,
    /// The micro-batch that was planned for a run with `--exact` without a given one. No bit depends on it.
    #[arg(skip)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planned_micro_batch: Option<usize>,
    /// How the run is divided among devices.
    #[arg(skip)]
    #[serde(default, skip_serializing_if = "ParallelSettings::is_none")]
    pub parallel: ParallelSettings,
    /// The index of this replica.
    #[arg(skip = Replica::ALONE)]
    #[serde(skip)]
    pub replica: Replica,
}

fn any_device_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    String::deserialize(deserializer).map(|name| device::canonical(&name))
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
            planned_micro_batch: None,
            exact: Exact::default(),
            precision: Precision::F32,
            parameters: Precision::F32,
            checkpointing: Recompute::None,
            memory: None,
            store: None,
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
            reduce_after: None,
            init: None,
            from: None,
            freeze: vec![],
            weights_in_checkpoint: false,
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
            let batch = counted(self.batch_size, "sample");
            return Err(Usage(format!("--micro-batch is {micro_batch}, expected at most the {batch} of a batch")));
        }
        let most = samples - samples % self.replica.count();
        if self.batch_size > most && most > 0 {
            if self.replica.index() == 0 {
                let (has, batch) = (counted(samples, "sample"), self.batch_size);
                tracing::warn!("the data set has {has}: batches of {most}, not of {batch}");
            }
            self.batch_size = most;
            self.micro_batch = self.micro_batch.map(|micro_batch| micro_batch.min(most));
        }
        Ok(())
    }

    /// A loader of `samples` samples in their order. A batch is never larger than all of them. On the CPU device, whose memory is the
    /// host's, the loader takes at most a quarter of a step's memory budget, and an eighth of a process's.
    pub fn loader(&self, samples: usize) -> LoaderConfig {
        let budget = match self.memory {
            Some(MemorySetting::Step(bytes)) if self.device == "flex" => {
                self.loader_memory.0.min((bytes / 4).max(LEAST_LOADER_BYTES))
            }
            // The process has a part that is not known yet.
            Some(MemorySetting::Bytes(bytes)) if self.device == "flex" => {
                self.loader_memory.0.min((bytes / 8).max(LEAST_LOADER_BYTES))
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
        let policy = Policy::new(self.precision).keep_norms();
        if self.parameters == Precision::F32 { policy } else { policy.storing() }
    }

    /// Refuses parameters that are stored in another precision than layers compute in.
    pub(crate) fn check_precision(&self) -> Result<(), Usage> {
        match self.parameters {
            Precision::F32 => Ok(()),
            stored if stored == self.precision => Ok(()),
            stored => {
                Err(Usage(format!("--precision is {}, expected {stored} beside --parameters {stored}", self.precision)))
            }
        }
    }

    /// When to evaluate and save, in addition to the ends of epochs.
    pub fn every(&self) -> Intervals {
        Intervals::default().with_evaluation(self.evaluate_every).with_checkpoint(self.save_every)
    }

    /// Samples on the device at once outside of training steps: as many as in one.
    pub fn at_once(&self) -> usize {
        self.micro_batch.or(self.planned_micro_batch).unwrap_or(self.batch_size)
    }

    /// Prepares the settings for a command that takes no training step of the run: on its own device, without its memory budget and its store.
    pub(crate) fn leave_training(&mut self, device: Option<&String>) {
        self.device = device.cloned().unwrap_or_else(|| "flex".into());
        (self.memory, self.store) = (None, None);
        if self.streams() {
            self.checkpointing = Recompute::None;
        }
    }

    /// Whether the plan that the settings name streams blocks.
    pub(crate) fn streams(&self) -> bool {
        match &self.checkpointing {
            Recompute::Plan(plan) => plan.streams(),
            other => *other == Recompute::Stream,
        }
    }
}

fn is_f32(precision: &Precision) -> bool {
    *precision == Precision::F32
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::{Arg, Command, FromArgMatches};

    use super::*;
    use crate::given::Given;

    #[test]
    fn a_batch_is_never_larger_than_the_data() {
        let run = |samples, replicas| {
            let mut run = RunSettings { micro_batch: Some(32), ..RunSettings::new(1, 64) };
            run.replica = Replica::new(0, replicas).unwrap();
            run.fit_batch(samples).unwrap();
            (run.batch_size, run.micro_batch)
        };
        for (samples, replicas, expected) in
            [(64, 1, (64, Some(32))), (41, 1, (41, Some(32))), (41, 2, (40, Some(32))), (9, 1, (9, Some(9)))]
        {
            assert_eq!(run(samples, replicas), expected);
        }
        let mut run = RunSettings { micro_batch: Some(65), ..RunSettings::new(1, 64) };
        assert!(run.fit_batch(1000).unwrap_err().0.contains("--micro-batch is 65"));
    }

    /// Options whose value is not the number 7.
    const VALUES: [(&str, &str); 10] = [
        ("data", "text"),
        ("device", "gpu:3"),
        ("precision", "amp"),
        ("parameters", "bf16"),
        ("checkpointing", "sqrt"),
        ("memory", "7MiB"),
        ("loader_memory", "7MiB"),
        ("bad_samples", "skip:7"),
        ("optimizer_offload", ""),
        ("exact", "=never"),
    ];

    #[test]
    fn each_option_changes_the_setting_of_its_name_alone() {
        let table = |run: &RunSettings| toml::Table::try_from(run).unwrap();
        let defaults = || RunSettings::new(1, 8);
        // Options of the call, which some of these exclude.
        let others = ["resume", "config"].map(|name| Arg::new(name).long(name));
        let command = || Given::<RunSettings>::augment_args(Command::new("run").no_binary_name(true));
        let own = command();
        let options: Vec<&Arg> = own.get_arguments().collect();
        assert!(options.len() > 20, "{}", options.len());
        for option in options {
            let (id, long) = (option.get_id().as_str(), format!("--{}", option.get_long().unwrap()));
            let value = VALUES.iter().find(|(name, _)| *name == id).map_or("7", |(_, value)| *value);
            let words = match value {
                "" => vec![long.clone()],
                _ if value.starts_with('=') => vec![format!("{long}{value}")],
                _ => vec![long.clone(), value.into()],
            };
            let matches = command().args(&others).try_get_matches_from(words).unwrap();
            let mut run = defaults();
            Given::<RunSettings>::from_arg_matches(&matches).unwrap().apply(&mut run).unwrap();
            let (before, after) = (table(&defaults()), table(&run));
            let names = before.keys().chain(after.keys()).filter(|name| before.get(*name) != after.get(*name));
            assert_eq!(names.collect::<BTreeSet<_>>(), BTreeSet::from([&id.to_owned()]), "{long}");
            let read: RunSettings = after.clone().try_into().unwrap();
            assert_eq!(table(&read), after, "a file with {long}");
        }
    }

    #[test]
    fn devices_and_sizes_in_a_file_have_other_names_and_a_unit() {
        let run = "device = 'hip:1'\nseed = 1\nepochs = 1\nbatch_size = 1\nworkers = 1\nevaluate_every = 0\nsave_every = 0\nkeep = 1\n";
        assert_eq!(toml::from_str::<RunSettings>(run).unwrap().device, "rocm:1");
        for (line, expected) in [
            ("memory = 300", "memory: 300 has no unit, expected e.g. 300MiB"),
            ("loader_memory = '300'", "loader memory: 300 has no unit"),
        ] {
            let error = toml::from_str::<RunSettings>(&format!("{run}{line}\n")).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
