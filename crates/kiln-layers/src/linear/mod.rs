//! Linear layers, alone or with the norm or the activation before them.

mod composed;
#[cfg(feature = "flex")]
mod flex;
mod functions;
mod graph;
mod parameters;
#[cfg(feature = "flex")]
mod prologue;
mod settings;
#[cfg(feature = "flex")]
mod values;
#[cfg(feature = "flex")]
mod weight;

pub(crate) use functions::{Input, parameters};
pub use functions::{activation_linear, linear, norm_linear};
pub(crate) use graph::{LinearSaved, gradients, prologue_linear};
pub(crate) use parameters::LinearParameters;
pub(crate) use settings::Prologue;
