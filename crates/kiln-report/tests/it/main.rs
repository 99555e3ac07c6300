//! Tests of the pages, from their data to what a reader finds in them.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test panics at the first failure")]

mod large_step;
mod memory;
mod pages;
