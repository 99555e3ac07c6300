//! JPEG: its header, the bytes that decoding takes, and its decoders.

mod damage;
mod decoder;
mod header;
mod layout;
mod scan_end;
mod segments;
#[cfg(feature = "turbo")]
mod turbo;

pub(crate) use decoder::decode;
pub(crate) use header::header;
pub(crate) use layout::Layout;
