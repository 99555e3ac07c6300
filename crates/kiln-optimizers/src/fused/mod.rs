//! Optimizers that update a parameter in one pass, with burn's settings, state and results.

mod adam;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;
#[cfg_attr(not(feature = "flex"), allow(dead_code, reason = "only kernels of the CPU device are called"))]
mod rule;
mod sgd;
mod together;
mod update;

pub(crate) use rule::Betas;
pub(crate) use together::{factor, is_left, not_all_joined};
pub(crate) use update::Settings;

pub use adam::{FusedAdam, FusedAdamW};
pub use sgd::{FusedSgd, FusedSgdState};
pub use together::{Updated, scales_in_update, update_together};
