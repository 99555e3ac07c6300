//! The layouts of image data sets on disk.

mod folder;
mod open;
mod packed;

pub use folder::images_below;
pub(crate) use folder::is_image;
pub use open::open_images;
pub use packed::write_idx_gz;
