//! Any optimizer on parameters in bf16, which are rounded stochastically.

#[cfg_attr(not(feature = "flex"), allow(dead_code, reason = "rounding itself is a kernel of the CPU device"))]
mod bits;
mod composed;
#[cfg(feature = "flex")]
mod flex;
mod noise;
mod optimizer;
mod round;
mod state;

pub use optimizer::StochasticBf16;
pub use state::StochasticState;
