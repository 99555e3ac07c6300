//! `cargo xtask plan`.

use clap::{Args, Subcommand};

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
    /// adamw (8 bytes a parameter), adamw8bit (2), adamw4bit (1), adafactor, lion, muon, sgd (4) or sgd8bit (1) [default: that of the
    /// pipeline, in f32, in 8 bits and, on cuda, in host memory]
    #[arg(long)]
    pub(crate) optimizer: Option<String>,
    /// Use burn's own layers in place of kiln-layers', which keep less for the backward pass, to compare
    #[arg(long)]
    pub(crate) stock_layers: bool,
    /// Divide the blocks into stages on so many devices, each with so much memory, and show what each of them holds
    #[arg(long, value_name = "N")]
    pub(crate) stages: Option<u32>,
    /// The order in which stages work on micro-batches: 1f1b, gpipe or sequential [default: 1f1b]
    #[arg(long)]
    pub(crate) schedule: Option<String>,
    /// Copies of the model that compute a part of every batch each
    #[arg(long, value_name = "N")]
    pub(crate) replicas: Option<u32>,
    /// Divide the optimizer's state among the replicas (ZeRO stage 1)
    #[arg(long)]
    pub(crate) shard_optimizer: bool,
    /// Every size and plan, not only whole batches and the largest that fit
    #[arg(long)]
    pub(crate) all: bool,
    /// One JSON object on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Subcommand)]
pub enum Plan {
    /// An image classifier on RGB images; also called `resnet`
    #[command(alias = "resnet")]
    Classify(PlanClassify),
    /// A U-Net on tiles of RGB images
    Segment(PlanSegment),
    /// A GPT-2-style decoder
    Gpt(PlanGpt),
}

#[derive(Args)]
pub struct PlanClassify {
    #[command(flatten)]
    pub(crate) plan: PlanArgs,
    /// As for `train classify`: resnet50, mobilenet_v2, shufflenet_v2_x1_0, vit_small, ..
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
pub struct PlanSegment {
    #[command(flatten)]
    pub(crate) plan: PlanArgs,
    /// Whose blocks are the encoder: resnet18, 34, 50 or 101, or mobilenet_v2
    #[arg(long, value_name = "NAME", default_value = "resnet18")]
    pub(crate) encoder: String,
    /// Rows and columns of a tile, a multiple of 32
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub(crate) tile: u32,
    /// Classes
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) classes: u32,
}

#[derive(Args)]
pub struct PlanGpt {
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
