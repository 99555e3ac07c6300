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
    /// A tensor has a shape that does not fit the others.
    #[error("{what}: the shape is {found:?}, expected {expected}")]
    Shape {
        /// The tensor.
        what: &'static str,
        /// Its shape.
        found: Vec<usize>,
        /// What fits.
        expected: String,
    },
    /// A file of stored outputs belongs to another teacher, another data set, or other settings.
    #[error("'{path}' holds outputs of {found}, expected {expected}")]
    OtherCache {
        /// The file.
        path: std::path::PathBuf,
        /// What the file says.
        found: String,
        /// What was asked for.
        expected: String,
    },
    /// Adapters that do not fit a model, or each other.
    #[error("the adapter of '{path}': {reason}")]
    Adapter {
        /// The path of the parameter.
        path: String,
        /// Why.
        reason: String,
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
