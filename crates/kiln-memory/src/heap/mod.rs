//! An allocator for tensors on the heap.

mod extents;
mod pages;
mod reusing;

pub use reusing::ReusingAllocator;
