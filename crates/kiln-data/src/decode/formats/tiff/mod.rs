//! TIFF and BigTIFF: their header, and the strips or tiles that hold their pixels.

mod adapted;
mod chunks;
mod decoder;
mod directory;
mod header;
mod layout;
mod palette;

pub(crate) use chunks::{Chunks, Piece};
pub(crate) use decoder::decode;
pub(crate) use header::header;
pub(crate) use layout::Layout;
