//! The file formats that are decoded.

mod gif;
pub(super) mod jpeg;
pub(super) mod other;
pub(super) mod png;
mod png_exif;
pub(super) mod tiff;
mod webp;
