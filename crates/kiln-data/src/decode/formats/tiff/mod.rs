//! TIFF and BigTIFF: their header, and the strips or tiles that hold their pixels.

mod chunks;
mod decoder;
mod directory;
mod layout;

pub(crate) use chunks::{Chunks, Piece};
pub(crate) use decoder::decode;
pub(crate) use layout::{Layout, header};
