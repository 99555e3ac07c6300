//! Options of every training run and every evaluation.

use std::path::PathBuf;

use clap::Args;

use super::begin::BeginArgs;
use super::optimizer::OptimizerArgs;
use super::parallel::ParallelArgs;

/// Options of every training run. What is not given comes from --config, then from the recipe's defaults.
#[derive(Args, Default)]
pub(crate) struct RunArgs {
    /// Data set; without it the small one in fixtures/
    #[arg(long, value_name = "PATH")]
    pub(crate) data: Option<PathBuf>,
    /// Directory of the run, which must be new or empty [default: runs/MODEL-NNN]; of `memory`, where its page goes
    /// [default: here]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Go on with the run in this directory, under its own settings. Its length, its learning rate, when it evaluates, saves and ends, and how
    /// it uses memory may be changed by their options, which its history.jsonl then notes
    #[arg(long, value_name = "DIR")]
    pub(crate) resume: Option<PathBuf>,
    /// Settings as a TOML file; options on the command line win over it
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// flex (the CPU), or cuda:N [default: flex]
    #[arg(long)]
    pub(crate) device: Option<String>,
    /// Samples per step
    #[arg(long, value_name = "N")]
    pub(crate) batch_size: Option<u32>,
    /// Samples on the device at once: a larger batch is cut and its gradients added up [default: the batch]
    #[arg(long, value_name = "N")]
    pub(crate) micro_batch: Option<u32>,
    /// f32, f16 (with a dynamic loss scale) or bf16 [default: f32]
    #[arg(long)]
    pub(crate) precision: Option<String>,
    /// Keep fewer activations and compute them again: none, every:K blocks, sqrt, offload, or auto:BYTES (the fastest plan whose
    /// step is predicted to stay within, as in auto:140MiB) [default: none]
    #[arg(long, value_name = "PLAN")]
    pub(crate) checkpointing: Option<String>,
    /// Bytes that a step may take, as in 300MiB, or auto (nine tenths of what is free): picks micro-batch and checkpoint plan
    /// before the first step, and cuts batches smaller when memory runs out all the same
    #[arg(long, value_name = "BYTES")]
    pub(crate) memory: Option<String>,
    /// With --memory: compute in bf16 if the run does not fit in its own precision
    #[arg(long)]
    pub(crate) allow_bf16: bool,
    /// Seconds that a batch waits in all for memory that another program holds, before the run ends [default: 300]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) wait_for_memory: Option<u64>,
    /// Have memory run out on purpose at each boundary of a step with this probability, to see runs recover
    #[arg(long, value_name = "P")]
    pub(crate) inject_oom: Option<f64>,
    /// Passes over the data
    #[arg(long, value_name = "N")]
    pub(crate) epochs: Option<u32>,
    /// Stop after this many steps, even within an epoch
    #[arg(long, value_name = "N")]
    pub(crate) max_steps: Option<u32>,
    /// What all randomness is derived from
    #[arg(long)]
    pub(crate) seed: Option<u32>,
    /// Highest learning rate
    #[arg(long, value_name = "RATE")]
    pub(crate) learning_rate: Option<f64>,
    /// Scale gradients down to this global norm
    #[arg(long, value_name = "NORM")]
    pub(crate) clip_norm: Option<f64>,
    /// Use burn's own layers in place of kiln-layers', which keep less for the backward pass, to compare
    #[arg(long)]
    pub(crate) stock_layers: bool,
    /// Threads that load data
    #[arg(long, value_name = "N")]
    pub(crate) workers: Option<u32>,
    /// Bytes of host memory for batches that wait and images being decoded, as in 256MiB [default: 1GiB]
    #[arg(long, value_name = "BYTES")]
    pub(crate) loader_memory: Option<String>,
    /// What to do about samples that cannot be read: fail, skip:N or substitute:N, for at most N of them [default: fail]
    #[arg(long, value_name = "POLICY")]
    pub(crate) bad_samples: Option<String>,
    /// Measure the model every N steps besides the end of each epoch (0: only then)
    #[arg(long, value_name = "N")]
    pub(crate) evaluate_every: Option<u32>,
    /// End the run after N evaluations in a row without a better test_accuracy, test_miou or bits_per_byte (0: never) [default: 0]
    #[arg(long, value_name = "N")]
    pub(crate) patience: Option<u32>,
    /// Save a checkpoint every N steps besides the end of each epoch (0: only then)
    #[arg(long, value_name = "N")]
    pub(crate) save_every: Option<u32>,
    /// Keep the newest N checkpoints, and the best one in any case
    #[arg(long, value_name = "N")]
    pub(crate) keep: Option<u32>,
    #[command(flatten)]
    pub(crate) begin: BeginArgs,
    #[command(flatten)]
    pub(crate) optimizer: OptimizerArgs,
    #[command(flatten)]
    pub(crate) parallel: ParallelArgs,
    /// End stdout with one JSON object of results
    #[arg(long)]
    pub(crate) json: bool,
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
    /// Data set; without it the one the model was trained on
    #[arg(long, value_name = "PATH")]
    pub(crate) data: Option<PathBuf>,
    /// A run's config.toml, for a .safetensors file outside of a run directory
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// flex (the CPU), or cuda:N [default: flex]
    #[arg(long)]
    pub(crate) device: Option<String>,
    /// Samples per batch
    #[arg(long, value_name = "N")]
    pub(crate) batch_size: Option<u32>,
    /// End stdout with one JSON object of results
    #[arg(long)]
    pub(crate) json: bool,
}
