//! Low-rank adapters.
