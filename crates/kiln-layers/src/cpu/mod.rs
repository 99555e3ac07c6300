//! Code that the kernels of burn's CPU device share. Results do not depend on the number of threads.

pub(crate) mod gemm;
pub(crate) mod math;
pub(crate) mod stored;
