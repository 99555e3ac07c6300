//! The errors of this crate.

/// Errors of settings that do not fit a model, and of files.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A number is out of range.
    #[error("{what} is {value}, expected {expected}")]
    InvalidSetting {
        /// What the number sets.
        what: &'static str,
        /// The number.
        value: String,
        /// What is accepted.
        expected: &'static str,
    },
    /// A path names no parameter of the model.
    #[error("the model has no parameter '{path}', expected one of: {known}")]
    UnknownParameter {
        /// The path.
        path: String,
        /// The paths of the model.
        known: String,
    },
    /// A file cannot be read, or is not what it should be.
    #[error("cannot load '{path}': {reason}")]
    Load {
        /// The file.
        path: std::path::PathBuf,
        /// Why.
        reason: String,
    },
    /// A file cannot be written.
    #[error("cannot save '{path}': {reason}")]
    Save {
        /// The file.
        path: std::path::PathBuf,
        /// Why.
        reason: String,
    },
    /// A model is to be pruned and has no masks.
    #[error("the model has no masks, expected Masks to be attached with apply_reparameterization")]
    NoMasks,
    /// The state of an optimizer cannot be changed.
    #[error("the state of the optimizer cannot be changed: {0}")]
    Optimizer(String),
    /// A forward pass cannot be recorded.
    #[error("the model cannot be recorded: {0}")]
    Record(String),
    /// A parameter has parameters of a reparameterization besides its mask.
    #[error(
        "'{path}' has parameters of a reparameterization, expected none but a mask: merge them first (materialize)"
    )]
    Reparameterized {
        /// The parameter.
        path: String,
    },
}
