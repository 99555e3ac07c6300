//! Labelled images: data sets on disk, their transforms, and batches of them.

mod erase;
mod image_batch;
mod image_set;
mod layouts;
mod mix;
mod pixels;
mod transform;

pub use image_batch::{ImageBatch, Normalize};
pub use image_set::{ImageSet, LabeledImage};
pub(crate) use layouts::is_image;
pub use layouts::{images_below, open_images, write_idx_gz};
pub use mix::{Mix, MixedLabels};
pub use pixels::Pixels;
pub(crate) use pixels::byte_dtype;
pub use transform::{Crop, Transform};
