//! Where the parameters of streamed blocks live between their uses.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Error;

/// What a blob has of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Content {
    /// Its value.
    Value,
    /// The optimizer's state for it, as an [`OptimizerRecord`](burn::optim::OptimizerRecord).
    State,
    /// The sum of its gradients in the step that is under way, in f32.
    Gradient,
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Value => "value",
            Self::State => "state",
            Self::Gradient => "gradient",
        })
    }
}

/// The name of some bytes in a [`Store`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Blob {
    /// Number of the parameter.
    pub parameter: usize,
    /// What the bytes are.
    pub content: Content,
}

impl fmt::Display for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the {} of parameter {}", self.content, self.parameter)
    }
}

/// A place for blobs outside of the device's memory: [`HostStore`](crate::HostStore), [`FileStore`](crate::FileStore).
///
/// A blob has a current version, which is read, and a next one, which is written. A commit makes next versions current, all of them or
/// none, whenever the process ends. Gradients are the exception: they belong to a step, so that they are current at once, and nobody needs
/// them after the process.
pub trait Store: Send + Sync {
    /// Reads the current version. `None` if there is none.
    ///
    /// # Errors
    /// [`Error::Store`].
    fn read(&self, blob: Blob) -> Result<Option<Vec<u8>>, Error>;

    /// Writes the next version, instead of one that was not committed.
    ///
    /// # Errors
    /// [`Error::Store`]; current versions are as before.
    fn write(&self, blob: Blob, bytes: &[u8]) -> Result<(), Error>;

    /// Makes the next versions of `blobs` current, and `note` the note. Other next versions and gradients are dropped.
    ///
    /// # Errors
    /// [`Error::Store`], also if a blob has no next version; the store is then as before.
    fn commit(&self, blobs: &[Blob], note: &str) -> Result<(), Error>;

    /// The note of the last commit. `None` before the first.
    ///
    /// # Errors
    /// [`Error::Store`].
    fn note(&self) -> Result<Option<String>, Error>;
}
