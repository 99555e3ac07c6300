//! Rotary position embedding.

mod composed;
mod cost;
#[cfg(feature = "flex")]
mod flex;
mod functions;
mod graph;
mod settings;

pub use functions::rotary;
pub use settings::{RotaryOptions, RotaryPairs};
