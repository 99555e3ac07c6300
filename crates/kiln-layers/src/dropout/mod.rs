//! Dropout whose mask is computed again in the backward pass.

mod composed;
mod cost;
#[cfg(feature = "flex")]
mod flex;
mod functions;
mod graph;
mod settings;

pub use functions::dropout;
pub(crate) use settings::DropoutSettings;
