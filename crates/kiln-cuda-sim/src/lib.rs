//! A CUDA driver in software: `libcuda.so.1` for testing CubeCL programs on a machine without a card.
//!
//! [`driver`] is the simulated machine: cards, memory, streams, faults, counts. [`ptx`] reads kernels and runs them. The C functions
//! that a program finds in the library are thin shells around the first; they are exported and not part of the Rust interface.
//! The README has the settings and what the simulation does not tell.

#![allow(unsafe_code, reason = "the driver API is a C interface, and kernels read and write raw device memory")]

mod api;
pub mod driver;
pub mod ptx;
