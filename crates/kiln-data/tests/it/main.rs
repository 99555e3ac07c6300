//! The tests of kiln-data through its public API, in one binary.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod budget;
mod burn_loader;
mod chat;
mod damage;
mod decode;
mod documents;
mod fixtures;
mod folders;
mod hostile;
mod images;
mod loader;
mod metadata;
mod peak_bytes;
mod raster;
mod records;
mod sampler;
mod sources;
mod text;
mod tiff_kinds;
mod tiles;
mod token_file;
mod tokenizer;
