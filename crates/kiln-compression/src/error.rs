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
    /// A number is infinite or not a number.
    #[error("{what} is {value}, expected a finite number")]
    NotFinite {
        /// What the number is.
        what: &'static str,
        /// The number.
        value: String,
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
}
