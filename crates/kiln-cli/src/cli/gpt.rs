//! `kiln train gpt`.

use std::path::PathBuf;

use clap::Args;

use super::defaults;
use super::learning::{LoraArgs, TeacherArgs};
use super::parallel::ParallelArgs;
use super::run::RunArgs;

#[derive(Args)]
#[command(mut_args(defaults::gpt))]
pub struct TrainGpt {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    #[command(flatten)]
    pub(crate) gpt: GptArgs,
    #[command(flatten)]
    pub(crate) parallel: ParallelArgs,
}

/// The model of a decoder and its text.
#[derive(Args)]
pub(crate) struct GptArgs {
    /// gpt-tiny, gpt-mini, gpt2 or gpt2-medium [default: gpt-tiny]
    #[arg(long, value_name = "NAME", help_heading = "Model")]
    pub(crate) model: Option<String>,
    /// Tokens per sequence [default: 64]
    #[arg(long, value_name = "N", help_heading = "Data")]
    pub(crate) context: Option<u32>,
    /// Folder with vocab.json and merges.txt of a GPT-2 BPE [default: a token per byte]
    #[arg(long, value_name = "DIR", help_heading = "Data")]
    pub(crate) tokenizer: Option<PathBuf>,
    /// Dropout probability [default: 0]
    #[arg(long, value_name = "P", help_heading = "Regularization")]
    pub(crate) dropout: Option<f64>,
    #[command(flatten)]
    pub(crate) lora: LoraArgs,
    #[command(flatten)]
    pub(crate) teacher: TeacherArgs,
}
