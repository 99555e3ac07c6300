//! The integration tests of kiln-parallel.

mod model;
mod pipeline;
