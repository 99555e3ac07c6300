//! Options of `cargo xtask bench`.

use std::path::PathBuf;

use clap::Args;

/// Cases of a pipeline take turns, each in a process of its own.
#[derive(Args)]
pub struct BenchArguments {
    /// Only these: resnet, gpt, function, or a case as --list names it [default: all of them]
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// Name all cases, measure nothing
    #[arg(long)]
    pub list: bool,
    /// Print the results as one JSON object in place of tables
    #[arg(long)]
    pub json: bool,
    /// Compare with earlier results; the exit status is 1 when a figure got worse
    #[arg(long, value_name = "FILE")]
    pub baseline: Option<PathBuf>,
    /// A figure is worse when it is worse by more than this, and beyond the quartiles of both
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    pub threshold: f64,
    /// Take the same steps with PyTorch, in turn with Kiln; the Python is KILN_PYTHON or python3
    #[arg(long)]
    pub peers: bool,
    /// Show where time and bytes of a step go, by phase, block and operation
    #[arg(long, conflicts_with_all = ["baseline", "peers", "json", "out"])]
    pub profile: bool,
    /// Where to write the results [default: benches/results/cpu.json when everything is measured]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Three rounds, to see that all works; the figures are rough
    #[arg(long, conflicts_with = "rounds")]
    pub quick: bool,
    /// Turns that each case gets [default: 30]
    #[arg(long, value_name = "N")]
    pub rounds: Option<u32>,
    /// Where to compute, as `train --device` names it
    #[arg(long, default_value = "flex", value_parser = kiln_cli::device::parse)]
    pub device: String,
    /// Put the committed results into README.md and docs/, measure nothing
    #[arg(long, exclusive = true)]
    pub readme: bool,
    /// Run one case in this process, a turn for each line on stdin
    #[arg(long, value_name = "NAME", hide = true)]
    pub case: Option<String>,
}
