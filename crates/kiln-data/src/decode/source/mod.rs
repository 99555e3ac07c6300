//! How the bytes of an image file are read, and why reading fails.

pub(super) mod guard;
pub(super) mod patched;
pub(super) mod read_clock;
pub(super) mod reader;
pub(super) mod reason;
