//! Options of every training run and every evaluation.

use std::path::PathBuf;

use clap::Args;

use super::begin::BeginArgs;
use super::optimizer::OptimizerArgs;
use super::values::{PRECISION, a_size, device, size_or_auto, utf8_path};

/// Options of a training step, which `train` and `memory` take. What is not given comes from --config, then from the recipe.
#[derive(Args, Default)]
pub(crate) struct StepArgs {
    /// Data set [default: the small one of the project]
    #[arg(long, value_name = "PATH", help_heading = "Data")]
    pub(crate) data: Option<PathBuf>,
    /// Threads that load data
    #[arg(long, value_name = "N", help_heading = "Data")]
    pub(crate) workers: Option<u32>,
    /// Host memory for batches that wait and images being decoded [default: 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = a_size, help_heading = "Data")]
    pub(crate) loader_memory: Option<String>,
    /// What to do about samples that cannot be read [default: fail]
    ///
    /// fail ends the run, skip:N leaves out at most N of them, and substitute:N puts other samples in their places.
    #[arg(long, value_name = "POLICY", help_heading = "Data")]
    pub(crate) bad_samples: Option<String>,
    /// Settings as a TOML file; options on the command line win over it
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Where to compute: cpu, or gpu:N (also called flex and cuda:N) [default: cpu]
    #[arg(long, value_parser = device)]
    pub(crate) device: Option<String>,
    /// What all randomness is derived from [default: 1]
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub(crate) seed: Option<u32>,
    /// Samples per step
    #[arg(long, visible_alias = "bs", alias = "batch", value_name = "N", help_heading = "Training")]
    pub(crate) batch_size: Option<u32>,
    /// Scale gradients down to this global norm
    #[arg(long, value_name = "NORM", help_heading = "Training")]
    pub(crate) clip_norm: Option<f64>,
    /// Use burn's own layers, which keep more memory, to compare
    #[arg(long, help_heading = "Model")]
    pub(crate) stock_layers: bool,
    /// Memory that a step may take, as in 300MiB, or auto [default: no limit]
    ///
    /// Picks micro-batch and checkpoint plan before the first step, and cuts batches smaller when memory runs out all the
    /// same. auto is nine tenths of the memory that is free.
    #[arg(long, value_name = "SIZE", value_parser = size_or_auto, help_heading = "Memory")]
    pub(crate) memory: Option<String>,
    /// Samples on the device at once [default: the batch]
    ///
    /// A larger batch is cut into micro-batches, whose gradients are added up.
    #[arg(long, value_name = "N", help_heading = "Memory")]
    pub(crate) micro_batch: Option<u32>,
    /// Keep fewer activations and compute them again [default: none]
    ///
    /// none, every:K blocks, sqrt, offload, or auto:SIZE: the fastest plan whose step is predicted to stay within a size,
    /// as in auto:140MiB.
    #[arg(long, value_name = "PLAN", help_heading = "Memory")]
    pub(crate) checkpointing: Option<String>,
    /// With --memory: compute in bf16 if the run does not fit in its own precision
    #[arg(long, help_heading = "Memory")]
    pub(crate) allow_bf16: bool,
    /// What layers compute in; f16 has a dynamic loss scale [default: f32]
    ///
    /// Also accepted: fp32 and float32; fp16, float16, half and amp; bfloat16.
    #[arg(long, value_parser = PRECISION, value_name = "NAME", help_heading = "Precision")]
    pub(crate) precision: Option<String>,
    #[command(flatten)]
    pub(crate) optimizer: OptimizerArgs,
    /// End stdout with one JSON object of results
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

/// Options of every training run.
#[derive(Args, Default)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) step: StepArgs,
    /// Directory of the run, which must be new or empty [default: runs/MODEL-NNN]
    #[arg(long, value_name = "DIR", value_parser = utf8_path(), help_heading = "Output")]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) begin: BeginArgs,
    /// Go on with the run in this directory, under its own settings
    ///
    /// Its length, its learning rate, when it evaluates, saves and ends, and how it uses memory may be changed by their
    /// options. Its history.jsonl notes each change.
    #[arg(long, value_name = "DIR", help_heading = "Checkpoints")]
    pub(crate) resume: Option<PathBuf>,
    /// Seconds that a batch waits for memory that another program holds [default: 300]
    ///
    /// They count for all its attempts together; after them the run ends.
    #[arg(long, value_name = "SECONDS", help_heading = "Memory")]
    pub(crate) wait_for_memory: Option<u64>,
    /// Have memory run out with this probability, to see runs recover [default: 0]
    ///
    /// It runs out at each boundary of a step.
    #[arg(long, value_name = "P", help_heading = "Memory")]
    pub(crate) inject_oom: Option<f64>,
    /// Passes over the data
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub(crate) epochs: Option<u32>,
    /// Stop after this many steps, even within an epoch
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub(crate) max_steps: Option<u32>,
    /// Highest learning rate
    #[arg(long, visible_alias = "lr", value_name = "RATE", allow_negative_numbers = true, help_heading = "Training")]
    pub(crate) learning_rate: Option<f64>,
    /// The learning rate is that of batches of N samples: scale it to --batch-size
    ///
    /// Linearly for sgd, with the square root for other optimizers; --batch-rule says otherwise.
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub(crate) base_batch: Option<u32>,
    /// With --base-batch: how the rate follows the batch [default: linear for sgd, else sqrt]
    #[arg(long, value_parser = super::values::BATCH_RULE, value_name = "RULE", requires = "base_batch", help_heading = "Training")]
    pub(crate) batch_rule: Option<String>,
    /// Measure the model every N steps besides the end of each epoch (0: only then)
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub(crate) evaluate_every: Option<u32>,
    /// End the run after N evaluations in a row without a better result (0: never) [default: 0]
    ///
    /// The result is test_accuracy, test_miou or bits_per_byte.
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub(crate) patience: Option<u32>,
    /// Save a checkpoint every N steps besides the end of each epoch [default: 500]
    #[arg(long, value_name = "N", help_heading = "Checkpoints")]
    pub(crate) save_every: Option<u32>,
    /// Keep the newest N checkpoints, and the best one in any case [default: 3]
    #[arg(long, value_name = "N", help_heading = "Checkpoints")]
    pub(crate) keep: Option<u32>,
}

/// What the checkpoint was trained with is read from the run directory it lies in, or from --config.
#[derive(Args)]
pub struct EvalArgs {
    /// A run directory, one of its checkpoints, or a .safetensors file
    #[arg(long, value_name = "PATH")]
    pub(crate) checkpoint: PathBuf,
    /// Of a run directory take the best checkpoint, not the newest
    #[arg(long)]
    pub(crate) best: bool,
    /// Data set [default: the one the model was trained on]
    #[arg(long, value_name = "PATH", help_heading = "Data")]
    pub(crate) data: Option<PathBuf>,
    /// A run's config.toml, for a .safetensors file outside of a run directory
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Where to compute: cpu, or gpu:N (also called flex and cuda:N) [default: cpu]
    #[arg(long, value_parser = device)]
    pub(crate) device: Option<String>,
    /// Samples per batch [default: as in training]
    #[arg(long, visible_alias = "bs", alias = "batch", value_name = "N")]
    pub(crate) batch_size: Option<u32>,
    /// End stdout with one JSON object of results
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}
