//! Options of `export`.

use std::path::PathBuf;

use clap::Args;

use super::trained::TrainedArgs;

#[derive(Args)]
#[command(after_help = super::examples::EXPORT)]
pub struct Export {
    #[command(flatten)]
    pub(crate) trained: TrainedArgs,
    /// Directory for the model, which must be new or empty [default: RUN/export]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// The format of the weights; onnx says how PyTorch writes it
    #[arg(long, default_value = "safetensors")]
    pub(crate) format: String,
}
