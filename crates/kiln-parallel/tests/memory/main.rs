//! The memory that stages hold, counted by the allocator of this process. The tests run one at a time.
#![allow(clippy::unwrap_used, reason = "a test ends at what goes wrong")]

mod allocator;
mod held;
