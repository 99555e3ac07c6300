//! Options of `kiln runs` and `kiln compare`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

#[derive(Args)]
#[command(after_help = super::examples::RUNS)]
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
#[command(after_help = super::examples::COMPARE)]
pub struct Compare {
    /// Directories of runs
    #[arg(value_name = "RUN", required = true)]
    pub(crate) runs: Vec<PathBuf>,
    /// The page with the curves of all runs
    #[arg(long, value_name = "FILE", default_value = "compare.html")]
    pub(crate) out: Option<PathBuf>,
}
