//! Options of `kiln compress`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{defaults, examples};
use crate::device;
use crate::values::{MemorySetting, absolute_path, bytes, number, utf8_path};

/// Each command reads a run directory of `train classify` or `train gpt` and writes a new one, which `eval` and `train --resume` take.
#[derive(Subcommand)]
pub enum Compress {
    /// Store the weights of a run's model in few bits
    #[command(after_help = examples::QUANTIZE)]
    Quantize(CompressQuantize),
    /// Train a run's model on while more and more of its weights are left out
    #[command(after_help = examples::PRUNE)]
    Prune(CompressPrune),
    /// Take whole channels out of a run's convolutional network, and train what is left
    #[command(after_help = examples::SHRINK)]
    Shrink(CompressShrink),
    /// Train a smaller model on the outputs of a run's model
    #[command(after_help = examples::DISTILL)]
    Distill(CompressDistill),
}

/// Options of every command.
#[derive(Args)]
pub(crate) struct CompressArgs {
    /// Directory of the run whose model is made smaller
    #[arg(value_name = "RUN")]
    pub(crate) run: PathBuf,
    /// Directory for the result, which must be new or empty [default: runs/MODEL-NNN]
    #[arg(long, value_name = "DIR", value_parser = utf8_path(), help_heading = "Output")]
    pub(crate) out: Option<PathBuf>,
    /// Data set [default: the one of the run]
    #[arg(long, value_name = "PATH", value_parser = absolute_path())]
    pub(crate) data: Option<PathBuf>,
    #[arg(long, value_parser = device::parse, help = device::help())]
    pub(crate) device: Option<String>,
    /// Passes over the data to train
    #[arg(long, value_name = "N", value_parser = number::<u64>, help_heading = "Training")]
    pub(crate) epochs: Option<u64>,
    /// Steps to train at most [default: all of the epochs]
    #[arg(long, value_name = "N", value_parser = number::<u64>, help_heading = "Training")]
    pub(crate) max_steps: Option<u64>,
    /// Highest learning rate
    #[arg(long, visible_alias = "lr", value_name = "RATE", help_heading = "Training")]
    pub(crate) learning_rate: Option<f64>,
    /// Memory that the run may take, as in 300MiB, step:300MiB or auto [default: no limit]
    #[arg(long, value_name = "SIZE", help_heading = "Training")]
    pub(crate) memory: Option<MemorySetting>,
    /// Random seed [default: that of the run]
    #[arg(long, value_name = "N", value_parser = number::<u64>, help_heading = "Training")]
    pub(crate) seed: Option<u64>,
    /// End stdout with one JSON object of results
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

/// With --epochs or --max-steps the model is trained in few bits first.
#[derive(Args)]
#[command(mut_args(defaults::quantize))]
pub struct CompressQuantize {
    #[command(flatten)]
    pub(crate) compress: CompressArgs,
    /// Bits of a weight, 2 to 8
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(crate) bits: u8,
    /// Weights that share a scale, at most [default: those of an output channel]
    #[arg(long, value_name = "N", value_parser = number::<usize>)]
    pub(crate) block: Option<usize>,
    /// Store the inputs of layers in 8 bits as well
    #[arg(long)]
    pub(crate) inputs: bool,
    /// With --inputs: how their ranges are found, min-max, percentile:P or mse
    #[arg(long, value_name = "METHOD", default_value = "mse", requires = "inputs")]
    pub(crate) calibrate: String,
    /// With --inputs: training batches that their ranges are found on
    #[arg(long, value_name = "N", default_value_t = 16, requires = "inputs")]
    pub(crate) calibration_batches: u32,
    /// What all weights may take, as in 200KiB [default: as --bits says]
    ///
    /// Each layer gets the bits, up to --bits, with which the error of all is least.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub(crate) budget: Option<u64>,
    /// Leave these parameters as they are: paths of them or their modules, as layer1
    #[arg(long, value_name = "PATH")]
    pub(crate) skip: Vec<String>,
}

#[derive(Args)]
#[command(mut_args(defaults::prune))]
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
    /// Leave these parameters whole: paths of them or their modules, as layer1
    #[arg(long, value_name = "PATH")]
    pub(crate) skip: Vec<String>,
}

#[derive(Args)]
#[command(mut_args(defaults::shrink))]
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
#[command(mut_args(defaults::distill))]
pub struct CompressDistill {
    #[command(flatten)]
    pub(crate) compress: CompressArgs,
    /// The student, as --model of `train` [default: that of the run]
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// Width of the student, as --width of `train` [default: half of the run's]
    ///
    /// Of a GPT it is the numbers per token.
    #[arg(long, value_name = "N")]
    pub(crate) width: Option<f64>,
    /// Divides the logits of both models before they are compared
    #[arg(long, value_name = "T", default_value_t = 1.5)]
    pub(crate) temperature: f64,
    /// Share of the loss that compares with the teacher; the rest with the labels
    #[arg(long, value_name = "SHARE", default_value_t = 0.7)]
    pub(crate) share: f64,
}
