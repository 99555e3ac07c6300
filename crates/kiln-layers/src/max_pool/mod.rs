//! Max pooling over planes, on burn's module.

mod composed;
#[cfg(feature = "flex")]
mod flex;
mod functions;
mod graph;
mod settings;

pub use functions::max_pool2d;
pub(crate) use settings::Windows;
