//! The position of a run in its data, as a line of text.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// The position of a run in its data: a few bytes from which it resumes with the next batch.
///
/// Saved as a line of text, in `Display` and `FromStr` as in serde:
/// `epoch=3 batch=120 samples=60000 batch_size=64 order=00f1e2d3c4b5a697`. The last three identify the
/// run; [`Sampler::resume`](crate::Sampler::resume) refuses the state of another run. The number of replicas is not in it
/// and may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct LoaderState {
    /// The epoch, counted from zero.
    pub epoch: u64,
    /// The batch of the epoch that comes next, counted from zero.
    pub batch: usize,
    /// Samples in the data set.
    pub samples: usize,
    /// Samples in a batch, over all replicas.
    pub batch_size: usize,
    /// A hash of the other settings that decide the batches: the order's kind, seed and weights, remainder, and buckets.
    pub order: u64,
}

impl fmt::Display for LoaderState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { epoch, batch, samples, batch_size, order } = self;
        write!(f, "epoch={epoch} batch={batch} samples={samples} batch_size={batch_size} order={order:016x}")
    }
}

impl FromStr for LoaderState {
    type Err = Error;

    /// # Errors
    /// [`Error::InvalidSetting`] for text that `Display` does not write.
    fn from_str(text: &str) -> Result<Self, Error> {
        let parsed = || {
            let mut words = text.split(' ');
            let mut value = |name: &str| words.next()?.strip_prefix(name)?.strip_prefix('=');
            let state = Self {
                epoch: value("epoch")?.parse().ok()?,
                batch: value("batch")?.parse().ok()?,
                samples: value("samples")?.parse().ok()?,
                batch_size: value("batch_size")?.parse().ok()?,
                order: u64::from_str_radix(value("order")?, 16).ok()?,
            };
            // Refuses further words and other spellings of a number.
            (state.to_string() == text).then_some(state)
        };
        parsed().ok_or_else(|| Error::InvalidSetting {
            name: "loader state",
            value: format!("{:?}", text.chars().take(100).collect::<String>()),
            expected: "'epoch=E batch=B samples=N batch_size=N order=H', numbers and 16 hexadecimal digits",
        })
    }
}

impl From<LoaderState> for String {
    fn from(state: LoaderState) -> Self {
        state.to_string()
    }
}

impl TryFrom<String> for LoaderState {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}
