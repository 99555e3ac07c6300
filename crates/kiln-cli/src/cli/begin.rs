//! Options about what a run begins with, and what of it is trained.

use std::path::PathBuf;

use clap::Args;

/// What a run begins with, and what of it is trained.
#[derive(Args, Default)]
pub(crate) struct BeginArgs {
    /// Begin with the weights of a .safetensors file or a run [default: random]
    ///
    /// The names are those of torchvision, timm or Hugging Face. Weights that fit are taken; a layer for another number of
    /// classes is new.
    #[arg(long, value_name = "FILE", conflicts_with = "from", help_heading = "Model")]
    pub(crate) init: Option<PathBuf>,
    /// Begin a new run with weights, optimizer state and settings of RUN
    #[arg(long, value_name = "RUN", conflicts_with_all = ["resume", "config"], help_heading = "Checkpoints")]
    pub(crate) from: Option<PathBuf>,
    /// Do not train parameters whose paths begin with PATH, as layer1
    ///
    /// Several paths are separated by commas, or the option is given again.
    #[arg(long, value_name = "PATH", value_delimiter = ',', help_heading = "Training")]
    pub(crate) freeze: Vec<String>,
}
