//! Options about what a run begins with, and what of it is trained.

use std::path::PathBuf;

use clap::Args;

/// What a run begins with, and what of it is trained.
#[derive(Args, Default)]
pub(crate) struct BeginArgs {
    /// Begin with the weights of a .safetensors file (of torchvision, timm or Hugging Face), or of a run directory, as far as they fit; a
    /// layer for another number of classes is new
    #[arg(long, value_name = "FILE", conflicts_with = "from")]
    pub(crate) init: Option<PathBuf>,
    /// Begin a new run with the weights, the optimizer's state and the settings of a run, or of one of its checkpoints
    #[arg(long, value_name = "RUN", conflicts_with_all = ["resume", "config"])]
    pub(crate) from: Option<PathBuf>,
    /// Do not train parameters whose paths begin with PATH, as layer1 or blocks.0; several with commas, or the option again
    #[arg(long, value_name = "PATH", value_delimiter = ',')]
    pub(crate) freeze: Vec<String>,
}
