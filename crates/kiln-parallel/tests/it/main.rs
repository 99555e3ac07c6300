//! The integration tests of kiln-parallel.

mod simulation;
mod split;
