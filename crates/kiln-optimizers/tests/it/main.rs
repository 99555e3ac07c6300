//! The optimizers against burn's own and against recorded results, on the CPU device.
#![allow(clippy::unwrap_used, reason = "a test ends at what goes wrong")]

mod blocks;
mod compare;
mod conformance;
mod fused;
mod quantized;
mod records;
