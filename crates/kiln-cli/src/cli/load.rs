//! Options of `kiln load`.

use std::path::PathBuf;

use clap::Args;

use super::values::{DAMAGED, DECODE, TRANSFORM, a_size};

#[derive(Args)]
#[command(after_help = super::examples::LOAD)]
pub struct Load {
    /// A data set as for `train classify`
    #[arg(value_name = "PATH")]
    pub(crate) data: PathBuf,
    /// Pixels per side that images are brought to
    #[arg(long, value_name = "N", default_value_t = 224)]
    pub(crate) image_size: u32,
    /// Make images smaller from all of their pixels (exact) or quicker (fast)
    #[arg(long, value_parser = DECODE, value_name = "QUALITY", default_value = "fast")]
    pub(crate) decode: String,
    /// Read images whose damage does not touch their pixels, or refuse them
    #[arg(long, value_parser = DAMAGED, value_name = "POLICY", default_value = "repair")]
    pub(crate) damaged_images: String,
    /// What is taken of an image
    ///
    /// The whole, its middle (evaluation), or a random part that is mirrored half the time (training).
    #[arg(long, value_parser = TRANSFORM, value_name = "PART", default_value = "whole")]
    pub(crate) transform: String,
    /// Images in a batch, at most all there are
    #[arg(long, visible_alias = "bs", alias = "batch", value_name = "N", default_value_t = 32)]
    pub(crate) batch_size: u32,
    /// Threads that load
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) workers: u32,
    /// Host memory for batches that wait and images being decoded
    #[arg(long, value_name = "SIZE", value_parser = a_size, default_value = "1GiB")]
    pub(crate) loader_memory: String,
    /// What to do about samples that cannot be read: fail, skip:N or substitute:N
    #[arg(long, value_name = "POLICY", default_value = "fail")]
    pub(crate) bad_samples: String,
    /// Times to go through the data
    ///
    /// If there are several, the first one is not in the images per second.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) epochs: u32,
    /// End stdout with one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
