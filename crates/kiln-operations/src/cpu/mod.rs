//! Code that kernels for burn's CPU device share. Results do not depend on the number of threads.

pub mod buffers;
pub mod chain;
pub mod gemm;
pub mod math;
pub mod place;
pub mod stored;
