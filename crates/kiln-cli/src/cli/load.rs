//! Options of `cargo xtask load`.

use std::path::PathBuf;

use clap::Args;

#[derive(Args)]
pub struct Load {
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
