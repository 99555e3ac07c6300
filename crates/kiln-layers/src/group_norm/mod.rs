//! Group norm and instance norm, on burn's modules.

mod composed;
#[cfg(feature = "flex")]
mod flex;
mod functions;
mod graph;
mod settings;

pub use functions::{group_norm, instance_norm};
pub(crate) use settings::GroupNormSettings;
