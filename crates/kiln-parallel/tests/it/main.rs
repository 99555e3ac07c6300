//! The integration tests of kiln-parallel.

mod failures;
mod hand_over;
mod model;
mod pipeline;
