use std::path::PathBuf;

/// What can go wrong when a model is built, loaded, or saved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A field of a model's configuration has a value no model can be built from.
    #[error("{field} is {value}, expected {expected}")]
    InvalidConfig {
        /// The field's name.
        field: &'static str,
        /// The value that was given.
        value: String,
        /// What would be accepted.
        expected: &'static str,
    },
    /// No model has this name.
    #[error("unknown model '{name}', expected one of {expected}")]
    UnknownModel {
        /// The name that was given.
        name: String,
        /// The names that exist, separated by commas.
        expected: &'static str,
    },
    /// A checkpoint could not be read into the model; the model is unchanged.
    #[error("cannot load '{path}': {reason}")]
    Load {
        /// The file.
        path: PathBuf,
        /// Why, in one line.
        reason: String,
    },
    /// A checkpoint could not be written; no partial file is left behind.
    #[error("cannot save '{path}': {reason}")]
    Save {
        /// The file.
        path: PathBuf,
        /// Why, in one line.
        reason: String,
    },
}
