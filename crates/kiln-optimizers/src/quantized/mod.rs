//! Optimizers whose state is blocks of 8-bit or 4-bit codes.

mod adamw;
mod composed;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;
mod moment;
mod options;
#[cfg_attr(not(feature = "flex"), allow(dead_code, reason = "only kernels of the CPU device are called"))]
mod rule;
mod sgd;
mod update;

pub use adamw::{AdamW4bit, AdamW8bit, QuantizedAdamW, QuantizedAdamWState};
pub use moment::{QuantizedMoment, check_codes, is_number_of_rows};
pub use options::SecondMoment;
pub use sgd::{Sgd8bit, Sgd8bitState};
