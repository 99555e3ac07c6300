use std::path::PathBuf;

/// What can go wrong between the disk and a batch.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or directory could not be read.
    #[error("cannot read '{path}': {reason}")]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// The operating system's answer.
        reason: std::io::Error,
    },
    /// A file could not be written.
    #[error("cannot write '{path}': {reason}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        reason: std::io::Error,
    },
    /// A directory holds no data set of a known layout.
    #[error("no data set in '{path}': {reason}")]
    NoDataSet {
        /// The directory.
        path: PathBuf,
        /// What was looked for.
        reason: String,
    },
    /// A class directory without an image.
    #[error("class '{class}' in '{path}' has no image, expected at least one file ending in .jpg, .jpeg or .png")]
    EmptyClass {
        /// The class's name.
        class: String,
        /// The directory of classes.
        path: PathBuf,
    },
    /// A file does not have the format its name says.
    #[error("'{path}' is damaged or of another format: {reason}")]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A setting that no loader can have.
    #[error("{field} is {value}, expected {expected}")]
    InvalidSetting {
        /// The setting's name.
        field: &'static str,
        /// The value that was given.
        value: String,
        /// What would be accepted.
        expected: &'static str,
    },
    /// A tokenizer could not be built or used.
    #[error("tokenizer: {reason}")]
    Tokenizer {
        /// Why.
        reason: String,
    },
    /// The code that makes a batch panicked.
    #[error("batch {batch} of epoch {epoch}: the loading code panicked: {message}")]
    Panic {
        /// The epoch, counted from zero.
        epoch: u64,
        /// The batch within it, counted from zero.
        batch: usize,
        /// The panic's message.
        message: String,
    },
}

impl Error {
    pub(crate) fn read(path: &std::path::Path, reason: std::io::Error) -> Self {
        Self::Read { path: path.to_owned(), reason }
    }

    pub(crate) fn format(path: &std::path::Path, reason: impl Into<String>) -> Self {
        Self::Format { path: path.to_owned(), reason: reason.into() }
    }
}
