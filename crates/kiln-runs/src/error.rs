//! Why the files of a run cannot be read or written.

use std::path::{Path, PathBuf};

use kiln_data::printable;

/// Why the files of a run cannot be read or written, or why the run ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file that cannot be read or written.
    #[error("cannot {action} '{}': {reason}", printable(path))]
    File {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        reason: std::io::Error,
    },
    /// Another process works on the run.
    #[error("another process is working on the run '{}'", printable(.0))]
    InUse(PathBuf),
    /// A directory that is no run's.
    #[error("'{}' is no run: {reason}", printable(path))]
    NoRun {
        /// The directory.
        path: PathBuf,
        /// What it lacks.
        reason: String,
    },
    /// A file of a run with another content than a run writes.
    #[error("'{}' is damaged: {reason}", printable(path))]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Settings that a file cannot hold.
    #[error("the settings cannot be written: {0}")]
    Settings(String),
    /// A trainer that is one of several replicas, which would write the same files.
    #[error("the trainer is one of {0} replicas, expected one alone: Trainer::fit trains replicas")]
    Replicas(usize),
    /// The training ended with an error.
    #[error(transparent)]
    Training(#[from] kiln_training::Error),
}

impl Error {
    pub(crate) fn reading(path: &Path) -> impl FnOnce(std::io::Error) -> Self + use<> {
        Self::file("read", path)
    }

    pub(crate) fn writing(path: &Path) -> impl FnOnce(std::io::Error) -> Self + use<> {
        Self::file("write", path)
    }

    pub(crate) fn file(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |reason| Self::File { action, path, reason }
    }
}
