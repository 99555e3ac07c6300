//! The integration tests of kiln-parallel.
