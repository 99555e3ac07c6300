//! The errors of this crate.

use std::path::PathBuf;

/// Errors of building, loading and saving a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A field of a model's configuration has a value with which no model can be built.
    #[error("{field} is {value}, expected {expected}")]
    InvalidConfig {
        /// The field's name.
        field: &'static str,
        /// The value that was given.
        value: String,
        /// The values that are accepted.
        expected: String,
    },
    /// An input has a size that the model cannot compute with.
    #[error("the {size} of the input is {value}, expected {expected}")]
    InvalidInput {
        /// "image height", "image width", "number of tokens", "number of texts" or "token id".
        size: &'static str,
        /// The size that was given.
        value: usize,
        /// The sizes that are accepted.
        expected: String,
    },
    /// No token can be chosen from these logits.
    #[error("cannot choose from the logits of the next token: {reason}")]
    InvalidLogits {
        /// The reason, in one line.
        reason: String,
    },
    /// The parameters of a model that is in memory in parts could not be read.
    #[error("cannot read the parameters of the model: {reason}")]
    Unread {
        /// The reason, in one line.
        reason: String,
    },
    /// No model has this name.
    #[error("unknown model '{name}', expected one of {expected}")]
    UnknownModel {
        /// The name that was given.
        name: String,
        /// The names of all models, separated by commas.
        expected: &'static str,
    },
    /// A checkpoint could not be read into the model; the model is unchanged.
    #[error("cannot load '{path}': {reason}")]
    Load {
        /// The file.
        path: PathBuf,
        /// The reason, in one line.
        reason: String,
    },
    /// A tensor of a checkpoint has another shape than the model's; the model is unchanged.
    #[error(
        "cannot load '{path}': '{name}' is {found:?} in the file and {expected:?} in the model, expected the same shape"
    )]
    Shape {
        /// The file.
        path: PathBuf,
        /// The path of the parameter in the model.
        name: String,
        /// The shape in the model.
        expected: Vec<usize>,
        /// The shape in the file.
        found: Vec<usize>,
    },
    /// A checkpoint could not be written; no partial file is left behind.
    #[error("cannot save '{path}': {reason}")]
    Save {
        /// The file.
        path: PathBuf,
        /// The reason, in one line.
        reason: String,
    },
}
