//! Code that kernels for burn's CPU device share. Results do not depend on the number of threads.

pub mod buffers;
pub mod chain;
pub mod elementwise;
pub mod factor;
pub mod gemm;
pub mod math;
mod pack;
pub mod place;
pub mod stored;
pub(crate) mod tiles;
