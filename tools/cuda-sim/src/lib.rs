//! An emulator of the CUDA driver: `libcuda.so.1` for testing CubeCL programs on a machine without a GPU.
//!
//! [`driver`] is the simulated machine: GPUs, memory, streams, faults, counts. [`ptx`] reads kernels and runs them. The C functions that a
//! program finds in the library are thin shells around [`driver`]; they are exported and not part of the Rust interface. The README has the
//! settings, and the limits of the emulator.

#![allow(unsafe_code, reason = "the driver API is a C interface, and kernels read and write raw device memory")]

mod api;
pub mod driver;
pub mod ptx;
