//! Options of `predict`.

use std::path::PathBuf;

use clap::Args;

use super::trained::TrainedArgs;

#[derive(Args)]
#[command(after_help = super::examples::PREDICT)]
pub struct Predict {
    #[command(flatten)]
    pub(crate) trained: TrainedArgs,
    /// Image files, and folders of them, with the folders in them
    #[arg(value_name = "IMAGE", required = true)]
    pub(crate) images: Vec<PathBuf>,
    /// Classes that are told of an image, the likeliest first
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) top: usize,
    /// Of a segmentation: draw classes over images, DIR/NAME.png [default: none]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Images, or tiles of a segmentation, on the device at once
    #[arg(long, visible_alias = "bs", alias = "batch", value_name = "N", default_value_t = 32)]
    pub(crate) batch_size: usize,
    /// One line of JSON for each image
    #[arg(long)]
    pub(crate) json: bool,
}
