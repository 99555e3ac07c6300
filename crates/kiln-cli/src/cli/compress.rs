//! Options of `cargo xtask compress`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Each command reads a run directory of `train classify` or `train gpt` and writes a new one, which `eval` and `train --resume` take.
#[derive(Subcommand)]
pub enum Compress {
    /// Store the weights of a run's model in few bits; with --epochs or --max-steps train it for that first
    Quantize(CompressQuantize),
    /// Train a run's model on while more and more of its weights are left out
    Prune(CompressPrune),
    /// Take whole channels out of a run's convolutional network, and train what is left
    Shrink(CompressShrink),
    /// Train a smaller model on the outputs of a run's model
    Distill(CompressDistill),
}

/// Options of every command.
#[derive(Args)]
pub(crate) struct CompressArgs {
    /// Directory of the run whose model is made smaller
    #[arg(value_name = "RUN")]
    pub(crate) run: PathBuf,
    /// Directory for the result, which must be new or empty [default: runs/MODEL-NNN]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Data set; without it the one of the run
    #[arg(long, value_name = "PATH")]
    pub(crate) data: Option<PathBuf>,
    /// flex (the CPU), or cuda:N [default: flex]
    #[arg(long)]
    pub(crate) device: Option<String>,
    /// Passes over the data to train [default: 6 to prune, 10 to shrink, those of the run for a student, none to quantize]
    #[arg(long, value_name = "N")]
    pub(crate) epochs: Option<u32>,
    /// Steps to train at most
    #[arg(long, value_name = "N")]
    pub(crate) max_steps: Option<u32>,
    /// Highest learning rate [default: that of the run for a student, half of it where channels are removed, a tenth otherwise]
    #[arg(long, value_name = "RATE")]
    pub(crate) learning_rate: Option<f64>,
    /// Bytes that a step may take, as in 300MiB, or auto
    #[arg(long, value_name = "BYTES")]
    pub(crate) memory: Option<String>,
    /// What all randomness is derived from [default: that of the run]
    #[arg(long)]
    pub(crate) seed: Option<u32>,
    /// End stdout with one JSON object of results
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub struct CompressQuantize {
    #[command(flatten)]
    pub(crate) compress: CompressArgs,
    /// Bits of a weight, 2 to 8
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(crate) bits: u8,
    /// Weights that share a scale, at most; without it those of an output channel
    #[arg(long, value_name = "N")]
    pub(crate) block: Option<u32>,
    /// Store the inputs of layers in 8 bits as well
    #[arg(long)]
    pub(crate) inputs: bool,
    /// How the ranges of inputs are found: min-max, percentile:P or mse
    #[arg(long, value_name = "METHOD", default_value = "mse")]
    pub(crate) calibrate: String,
    /// Training batches that ranges of inputs are found on
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub(crate) calibration_batches: u32,
    /// Bytes that all weights may take, as in 200KiB: each layer gets the bits, up to --bits, with which the error of all is least
    #[arg(long, value_name = "BYTES")]
    pub(crate) budget: Option<String>,
    /// Leave these parameters as they are: their paths, or those of modules around them, as layer1
    #[arg(long, value_name = "PATH")]
    pub(crate) skip: Vec<String>,
}

#[derive(Args)]
pub struct CompressPrune {
    #[command(flatten)]
    pub(crate) compress: CompressArgs,
    /// Share of the weights that is left out in the end, 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.8)]
    pub(crate) sparsity: f64,
    /// Compare the weights of each layer by themselves, not those of the whole model
    #[arg(long)]
    pub(crate) per_layer: bool,
    /// Leave N of M weights in a row, as in 2:4, in place of --sparsity
    #[arg(long, value_name = "N:M", conflicts_with_all = ["sparsity", "per_layer"])]
    pub(crate) pattern: Option<String>,
    /// Leave these parameters whole: their paths, or those of modules around them, as layer1
    #[arg(long, value_name = "PATH")]
    pub(crate) skip: Vec<String>,
}

#[derive(Args)]
pub struct CompressShrink {
    #[command(flatten)]
    pub(crate) compress: CompressArgs,
    /// Share of the multiply-adds that is left, 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.5)]
    pub(crate) multiply_adds: f64,
    /// Channels that are left are a multiple of this
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) round_to: u32,
}

#[derive(Args)]
pub struct CompressDistill {
    #[command(flatten)]
    pub(crate) compress: CompressArgs,
    /// The student, as --model of `train` [default: that of the run]
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// Channels of the student's first stage, as --width of `train`; of a GPT the numbers per token [default: half of the run's]
    #[arg(long, value_name = "N")]
    pub(crate) width: Option<f64>,
    /// Divides the logits of both models before they are compared
    #[arg(long, value_name = "T", default_value_t = 1.5)]
    pub(crate) temperature: f64,
    /// Share of the loss that compares with the teacher; the rest compares with the labels
    #[arg(long, value_name = "SHARE", default_value_t = 0.7)]
    pub(crate) share: f64,
}
