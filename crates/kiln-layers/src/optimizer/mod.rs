//! Optimizers that update a parameter in one pass, with burn's settings, state and results.

mod adam;
#[cfg(feature = "flex")]
mod flex;
mod rule;
mod settings;
mod sgd;
mod update;

pub use adam::{FusedAdam, FusedAdamW};
pub use sgd::{FusedSgd, FusedSgdState};
