//! Tests of the public interface.
#![allow(clippy::unwrap_used, reason = "a test ends at what goes wrong")]

mod distill;
mod lora;
mod teacher_cache;
