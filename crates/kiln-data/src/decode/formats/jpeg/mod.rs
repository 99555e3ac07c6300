//! JPEG: its header, the bytes that decoding takes, and its decoders.

mod decoder;
mod header;
mod layout;
mod segments;
#[cfg(feature = "turbo")]
mod turbo;

pub(crate) use decoder::decode;
pub(crate) use header::header;
pub(crate) use layout::Layout;
