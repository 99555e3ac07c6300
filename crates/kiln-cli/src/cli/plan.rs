//! `kiln plan`.

use std::path::PathBuf;

use clap::{Args, Subcommand, value_parser};
use kiln_parallel::Schedule;
use kiln_precision::Precision;

use super::examples;
use super::train::{AdapterArgs, SizeArgs};
use crate::device;
use crate::values::{OPTIMIZER, PARAMETERS, PIPELINE_SCHEDULE, PRECISION, Size};

/// Nothing is computed: the figures are those of a recorded step.
#[derive(Args)]
pub(crate) struct PlanArgs {
    /// Memory that a step may take, as in 24GiB; no such device is needed
    ///
    /// On the CPU, --memory of `train` is that of the whole process; step:24GiB is that of a step there.
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Size,
    /// Samples per step
    #[arg(long, visible_alias = "bs", alias = "batch", value_name = "N", default_value_t = 32)]
    pub(crate) batch_size: u32,
    /// Only ways with the same bits: those of train --exact
    #[arg(long)]
    pub(crate) exact: bool,
    /// Whose rules and speed to go by, as `train --device` names it: a usual GPU of its kind, or this machine's CPU
    #[arg(long, value_parser = device::planned, value_name = "NAME", default_value = "cuda")]
    pub(crate) device: String,
    /// Data set for the command of `train` that is printed [default: a placeholder]
    #[arg(long, value_name = "PATH")]
    pub(crate) data: Option<PathBuf>,
    /// Directory of `train --store`, from which blocks are streamed if nothing else fits [default: that of the run]
    #[arg(long, value_name = "DIR")]
    pub(crate) store: Option<PathBuf>,
    /// What layers compute in [default: f32 and bf16 are compared]
    ///
    /// A step in f16 takes the memory and the time of one in bf16.
    #[arg(long, value_parser = PRECISION, value_name = "NAME")]
    pub(crate) precision: Option<Precision>,
    /// What parameters are stored in; bf16 is also what layers compute in then [default: f32]
    #[arg(long, value_parser = PARAMETERS, value_name = "NAME")]
    pub(crate) parameters: Option<Precision>,
    /// The optimizer [default: that of the recipe]
    ///
    /// Ways with its state in host memory are compared as well on a GPU, and without this option those with the recipe's optimizer in 8 bits.
    #[arg(long, value_parser = OPTIMIZER, value_name = "NAME")]
    pub(crate) optimizer: Option<&'static str>,
    /// Use burn's own layers, which keep more memory, to compare
    #[arg(long, help_heading = "Model")]
    pub(crate) stock_layers: bool,
    /// Divide the blocks into stages on so many devices, each with so much memory [default: 1]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=64), help_heading = "Several devices")]
    pub(crate) stages: Option<u32>,
    /// The order in which stages work on micro-batches [default: 1f1b]
    #[arg(long, value_parser = PIPELINE_SCHEDULE, value_name = "NAME", help_heading = "Several devices")]
    pub(crate) pipeline_schedule: Option<Schedule>,
    /// Copies of the model that compute a part of every batch each [default: 1]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=4096), help_heading = "Several devices")]
    pub(crate) replicas: Option<u32>,
    /// Divide the optimizer's state among the replicas (ZeRO stage 1)
    #[arg(long, help_heading = "Several devices")]
    pub(crate) shard_optimizer: bool,
    /// Every size and plan, not only the five best
    #[arg(long, help_heading = "Output")]
    pub(crate) all: bool,
    /// List what is in memory at the peak of the recommended way, or of the nearest
    #[arg(long, help_heading = "Output")]
    pub(crate) bytes: bool,
    /// One JSON object on stdout
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

#[derive(Subcommand)]
pub enum Plan {
    /// An image classifier on RGB images; also called `resnet`
    #[command(alias = "resnet", after_help = examples::PLAN_CLASSIFY)]
    Classify(PlanClassify),
    /// A U-Net on tiles of RGB images
    #[command(after_help = examples::PLAN_SEGMENT)]
    Segment(PlanSegment),
    /// A decoder of text: a GPT, or the model of a Hugging Face folder; also called `llm`
    #[command(alias = "llm", after_help = examples::PLAN_GPT)]
    Gpt(PlanGpt),
}

#[derive(Args)]
pub struct PlanClassify {
    #[command(flatten)]
    pub(crate) plan: PlanArgs,
    /// The network, as for `train classify`
    ///
    /// resnet50, mobilenet_v2, shufflenet_v2_x1_0, vit_small, ..
    #[arg(long, value_name = "NAME", default_value = "resnet50", help_heading = "Model")]
    pub(crate) model: String,
    /// Pixels per side
    #[arg(long, alias = "image", value_name = "N", value_parser = value_parser!(u32).range(1..=16384), default_value_t = 224, help_heading = "Data")]
    pub(crate) image_size: u32,
    /// Classes
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=1000000), default_value_t = 1000, help_heading = "Data")]
    pub(crate) classes: u32,
}

#[derive(Args)]
pub struct PlanSegment {
    #[command(flatten)]
    pub(crate) plan: PlanArgs,
    /// Whose blocks are the encoder: resnet18, 34, 50 or 101, or mobilenet_v2
    #[arg(long, value_name = "NAME", default_value = "resnet18", help_heading = "Model")]
    pub(crate) encoder: String,
    /// Rows and columns of a tile, a multiple of 32
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=16384), default_value_t = 512, help_heading = "Data")]
    pub(crate) tile: u32,
    /// Classes
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=1000000), default_value_t = 10, help_heading = "Data")]
    pub(crate) classes: u32,
}

#[derive(Args)]
pub struct PlanGpt {
    #[command(flatten)]
    pub(crate) plan: PlanArgs,
    /// gpt-tiny, gpt-mini, gpt2, gpt2-medium, gpt2-large or gpt2-xl, or a folder with config.json
    #[arg(long, value_name = "NAME|DIR", default_value = "gpt2", help_heading = "Model")]
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) sizes: SizeArgs,
    /// Tokens per sequence [default: 1024; of a folder at most its model's]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=1000000), help_heading = "Data")]
    pub(crate) context: Option<u32>,
    /// Tokens of the vocabulary; 256 are bytes [default: 50257; a folder's own]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=10000000), help_heading = "Data")]
    pub(crate) vocab: Option<u32>,
    #[command(flatten)]
    pub(crate) adapters: AdapterArgs,
}
