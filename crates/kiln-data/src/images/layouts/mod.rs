//! The layouts of image data sets on disk.

mod cifar;
mod folder;
mod idx;
mod open;

pub use folder::images_below;
pub(crate) use folder::is_image;
pub use idx::write_idx_gz;
pub use open::open_images;
