//! The memory of the process: an allocator for tensors, and the program's code.

mod code;
mod extents;
mod pages;
mod reusing;

pub use code::{code_bytes, release_code};
pub use reusing::ReusingAllocator;
