//! The run that a command uses the model of.

use std::path::PathBuf;

use clap::Args;

/// What the model was trained with is read from the run directory, or from --config.
#[derive(Args)]
pub(crate) struct TrainedArgs {
    /// A run directory, one of its checkpoints, or a .safetensors file
    #[arg(value_name = "RUN")]
    pub(crate) run: PathBuf,
    /// A run's config.toml, for a .safetensors file outside of a run directory
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The best checkpoint of the run instead of the newest
    #[arg(long)]
    pub(crate) best: bool,
    /// Where to compute: cpu, or gpu:N (also called flex and cuda:N) [default: cpu]
    #[arg(long, value_parser = super::values::device)]
    pub(crate) device: Option<String>,
}
