//! Token ids in files that may be larger than memory.

mod header;
mod reader;
mod writer;

pub use reader::TokenFile;
pub use writer::TokenFileWriter;
