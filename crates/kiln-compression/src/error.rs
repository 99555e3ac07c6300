//! The errors of this crate.

/// Errors of settings that do not fit a model, and of files.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A number is out of range.
    #[error("{name} is {value}, expected {expected}")]
    InvalidSetting {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: String,
        /// The values that are accepted.
        expected: &'static str,
    },
    /// A number is infinite or not a number.
    #[error("{what} is {value}, expected a finite number")]
    NotFinite {
        /// The quantity.
        what: &'static str,
        /// Its value.
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
    /// The smallest choices need more bytes than there are.
    #[error("the budget is {budget} bytes, expected at least {smallest}")]
    BudgetTooSmall {
        /// The budget.
        budget: u64,
        /// Bytes that the smallest choices need.
        smallest: u64,
    },
    /// A tensor has another shape than the parameter of the model.
    #[error("'{path}' has shape {found:?}, expected {expected:?}")]
    ShapeMismatch {
        /// The parameter.
        path: String,
        /// The shape of the tensor.
        found: Vec<usize>,
        /// The shape of the parameter.
        expected: Vec<usize>,
    },
    /// A parameter has a reparameterization, so that its stored value is not what layers read.
    #[error("'{path}' has a reparameterization, expected a plain parameter: materialize the model first")]
    Reparameterized {
        /// The parameter.
        path: String,
    },
    /// A device cannot give the values of a parameter.
    #[error("the values of '{path}' cannot be read: {reason}")]
    Read {
        /// The parameter.
        path: String,
        /// The reason.
        reason: String,
    },
    /// A tensor has a shape that does not fit the others.
    #[error("{what}: the shape is {found:?}, expected {expected}")]
    Shape {
        /// The tensor.
        what: &'static str,
        /// Its shape.
        found: Vec<usize>,
        /// The shapes that fit.
        expected: String,
    },
    /// Adapters that do not fit a model, or each other.
    #[error("the adapter of '{path}': {reason}")]
    Adapter {
        /// The path of the parameter.
        path: String,
        /// The reason.
        reason: String,
    },
    /// A device does not hold the values of a quantisation scheme.
    #[error("{device} does not hold values of {scheme}, expected a scheme of whole numbers such as Q8S")]
    UnsupportedScheme {
        /// The values of the scheme.
        scheme: String,
        /// The device.
        device: String,
    },
    /// A file cannot be read, or is not what it should be.
    #[error("cannot load '{path}': {reason}")]
    Load {
        /// The file.
        path: std::path::PathBuf,
        /// The reason.
        reason: String,
    },
    /// A file cannot be written.
    #[error("cannot save '{path}': {reason}")]
    Save {
        /// The file.
        path: std::path::PathBuf,
        /// The reason.
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
}

impl Error {
    pub(crate) fn invalid(what: &'static str, value: impl ToString, expected: &'static str) -> Self {
        Self::InvalidSetting { name: what, value: value.to_string(), expected }
    }

    /// The error of a path that is none of `known`.
    pub(crate) fn unknown<S: AsRef<str>>(path: &str, known: impl IntoIterator<Item = S>) -> Self {
        let known = known.into_iter().fold(String::new(), |all, path| match all.is_empty() {
            true => path.as_ref().to_owned(),
            false => all + ", " + path.as_ref(),
        });
        Self::UnknownParameter { path: path.to_owned(), known }
    }
}
