use std::fmt;

use crate::Error;

/// How much a batch or a micro-batch counts: the number of things its loss is the mean of.
///
/// A loss that is a mean over tokens (language models, masked targets) counts by the tokens that carry a loss, not by
/// sequences; weighing it by samples is the mistake that many trainers made until 2024, Hugging Face's among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// The loss is a mean over this many samples.
    Samples(usize),
    /// The loss is a mean over this many tokens; ignored ones do not count.
    Tokens(usize),
}

impl Weight {
    /// The number, without its unit.
    pub fn count(self) -> usize {
        match self {
            Self::Samples(count) | Self::Tokens(count) => count,
        }
    }

    /// The fraction of `total` that this is.
    pub(crate) fn share_of(self, total: Self) -> Result<f64, Error> {
        if total.count() == 0 {
            return Err(Error::Zero { what: "weight" });
        }
        if self != total.of(self.count()) {
            return Err(Error::Unit { fed: self, total });
        }
        if self.count() > total.count() {
            return Err(Error::Overfull { fed: self, missing: total });
        }
        Ok(self.count() as f64 / total.count() as f64)
    }

    /// The same unit with another number.
    pub(crate) fn of(self, count: usize) -> Self {
        match self {
            Self::Samples(_) => Self::Samples(count),
            Self::Tokens(_) => Self::Tokens(count),
        }
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Samples(count) => write!(f, "{count} samples"),
            Self::Tokens(count) => write!(f, "{count} tokens"),
        }
    }
}
