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
    /// Its gradient of a micro-batch that is under way, in f32, if several operations add to it.
    Partial,
    /// A tensor that a segment keeps from its first pass to its second, in the step that is under way.
    Input,
    /// What a run has beside its parameters, as it wants it: only of parameter 0.
    Rest,
}

impl Content {
    /// All of them.
    pub(super) const ALL: [Self; 6] =
        [Self::Value, Self::State, Self::Gradient, Self::Partial, Self::Input, Self::Rest];

    /// Whether it belongs to a step: such a blob is current at once, and nobody needs it after the step.
    pub fn is_of_step(self) -> bool {
        matches!(self, Self::Gradient | Self::Partial | Self::Input)
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Value => "value",
            Self::State => "state",
            Self::Gradient => "gradient",
            Self::Partial => "partial",
            Self::Input => "input",
            Self::Rest => "rest",
        })
    }
}

/// The name of some bytes in a [`Store`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Blob {
    /// Number of the parameter, or of the input.
    pub parameter: usize,
    /// What the bytes are.
    pub content: Content,
    /// Number of the part of the parameter: several rows of it. 0 for what is not divided.
    #[serde(default, skip_serializing_if = "is_first")]
    pub part: usize,
}

fn is_first(part: &usize) -> bool {
    *part == 0
}

impl Blob {
    pub(super) fn new(parameter: usize, content: Content, part: usize) -> Self {
        Self { parameter, content, part }
    }
}

impl fmt::Display for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.content {
            Content::Rest => f.write_str("what the run has beside its parameters"),
            Content::Input => write!(f, "input {}", self.parameter),
            content if self.part == 0 => write!(f, "the {content} of parameter {}", self.parameter),
            content => write!(f, "part {} of the {content} of parameter {}", self.part, self.parameter),
        }
    }
}

/// A place for blobs outside of the device's memory: [`HostStore`](crate::HostStore), [`FileStore`](crate::FileStore).
///
/// A blob has a current version, which is read, and a next one, which is written. A commit makes next versions current, all of them or
/// none, whenever the process ends. What [is of a step](Content::is_of_step) is the exception: it is current at once, and nobody needs it
/// after the process.
pub trait Store: Send + Sync {
    /// Hands the current version to `take`, piece by piece: each with the number of bytes that follow. Returns whether there is one.
    ///
    /// # Errors
    /// [`Error::Store`]; pieces may have been handed over.
    fn read(&self, blob: Blob, take: &mut dyn FnMut(&[u8], usize)) -> Result<bool, Error>;

    /// Writes the next version, instead of one that was not committed.
    ///
    /// # Errors
    /// [`Error::Store`]; current versions are as before.
    fn write(&self, blob: Blob, bytes: &[u8]) -> Result<(), Error>;

    /// Makes the next versions of `blobs` current, and `note` the note. Other next versions, and what is of the step, are dropped.
    ///
    /// # Errors
    /// [`Error::Store`], also if a blob has no next version; the store is then as before.
    fn commit(&self, blobs: &[Blob], note: &str) -> Result<(), Error>;

    /// The note of the last commit. `None` before the first.
    ///
    /// # Errors
    /// [`Error::Store`].
    fn note(&self) -> Result<Option<String>, Error>;

    /// Takes note that these blobs are read next, in this order. It may bring them near, outside of the memory of the process.
    fn read_ahead(&self, _blobs: &[Blob]) {}
}

impl<S: Store + ?Sized> Store for Box<S> {
    fn read(&self, blob: Blob, take: &mut dyn FnMut(&[u8], usize)) -> Result<bool, Error> {
        (**self).read(blob, take)
    }

    fn write(&self, blob: Blob, bytes: &[u8]) -> Result<(), Error> {
        (**self).write(blob, bytes)
    }

    fn commit(&self, blobs: &[Blob], note: &str) -> Result<(), Error> {
        (**self).commit(blobs, note)
    }

    fn note(&self) -> Result<Option<String>, Error> {
        (**self).note()
    }

    fn read_ahead(&self, blobs: &[Blob]) {
        (**self).read_ahead(blobs);
    }
}
