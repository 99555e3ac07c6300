//! Checkpoints of a run on disk.

mod directory;
mod manifest;

pub use directory::{Checkpoints, load_model};

pub(crate) use directory::load_model_by;
pub(crate) use manifest::{MANIFEST, MODEL, OPTIMIZER, STATE};
