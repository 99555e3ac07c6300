//! The memory that stages hold, counted by the allocator of this process. The tests run one at a time.

mod allocator;
mod held;
