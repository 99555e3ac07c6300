//! The integration tests of kiln-parallel.

mod cluster;
mod simulation;
mod split;
