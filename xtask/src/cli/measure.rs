//! `cargo xtask gpu`, `load` and `bench`.

use std::path::PathBuf;

use clap::Args;

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
