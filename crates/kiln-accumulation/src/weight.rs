//! How much a micro-batch counts.

use std::fmt;

/// The weight of a batch or a micro-batch: the number of samples or tokens that its loss is the mean of.
///
/// A mean over tokens (language models, masked targets) has the number of tokens with a loss as its weight, not the number of
/// sequences. Weighting it by samples is a mistake that many trainers made until 2024, Hugging Face's among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// The loss is a mean over this many samples.
    Samples(usize),
    /// The loss is a mean over this many tokens, without ignored ones.
    Tokens(usize),
}

impl Weight {
    /// The number, without its unit.
    pub fn count(self) -> usize {
        match self {
            Self::Samples(count) | Self::Tokens(count) => count,
        }
    }

    /// `count` in the unit of this weight: samples or tokens.
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
