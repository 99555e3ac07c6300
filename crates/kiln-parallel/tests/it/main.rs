//! The integration tests of kiln-parallel.

mod hand_over;
mod model;
mod pipeline;
