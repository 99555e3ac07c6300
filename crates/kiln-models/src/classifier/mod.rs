//! Any image classifier of this crate, chosen by name when a program runs.

mod config;
mod model;

pub use config::ClassifierConfig;
pub use model::{Classifier, ClassifierBlock};
