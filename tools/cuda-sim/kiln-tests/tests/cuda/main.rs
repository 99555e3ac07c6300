//! The training step on burn's CUDA backend, run on the emulator kiln-cuda-sim: no GPU is needed. With `KILN_TEST_GPU=wgpu`
//! and `=vulkan`, tests run through wgpu.
#![allow(clippy::unwrap_used, reason = "a test ends at the first error")]
#![allow(clippy::print_stdout, reason = "figures are shown on demand")]

mod account;
mod architectures;
mod attention;
mod budget;
mod failures;
mod follow;
mod layers;
mod lost;
mod offload;
mod optimizers;
mod predicted;
mod run;
mod sim;
mod stages;
mod steps;
mod sticky;
mod streamed;
#[path = "../../../../../crates/kiln-training/tests/it/support.rs"]
mod support;
mod tasks;
mod waits;
mod wgpu;
