//! Any optimizer on parameters in bf16, which are rounded stochastically.

mod composed;
#[cfg(feature = "flex")]
mod flex;
mod noise;
mod optimizer;
mod round;
mod state;

pub use optimizer::StochasticBf16;
pub use state::StochasticState;
