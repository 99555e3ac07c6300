//! The policy for samples that cannot be read.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// What happens when a sample cannot be read because it is damaged, no image, too large or missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadSample {
    /// Its batch is an error.
    Fail,
    /// Its batch has one sample less. A batch without samples is [`Error::NothingLeft`].
    Skip,
    /// Another sample of the same set replaces it, chosen as a function of (order, epoch, sample).
    Substitute,
}

/// The policy for samples that cannot be read, and the most there may be. As text: `fail`, `skip:100`, `substitute:100`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub struct BadSamples {
    /// What happens to a bad sample.
    pub policy: BadSample,
    /// The number of different bad samples after which the loader gives up. Training must not go on without a disk that went away.
    pub at_most: usize,
}

impl BadSamples {
    /// Every bad sample is an error.
    pub const FAIL: Self = Self { policy: BadSample::Fail, at_most: 0 };

    /// Up to `at_most` samples are left out.
    pub const fn skip(at_most: usize) -> Self {
        Self { policy: BadSample::Skip, at_most }
    }

    /// Up to `at_most` samples are replaced by others.
    pub const fn substitute(at_most: usize) -> Self {
        Self { policy: BadSample::Substitute, at_most }
    }
}

impl fmt::Display for BadSamples {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.policy {
            BadSample::Fail => write!(f, "fail"),
            BadSample::Skip => write!(f, "skip:{}", self.at_most),
            BadSample::Substitute => write!(f, "substitute:{}", self.at_most),
        }
    }
}

impl FromStr for BadSamples {
    type Err = Error;

    /// # Errors
    /// [`Error::InvalidSetting`] for text that `Display` does not write.
    fn from_str(text: &str) -> Result<Self, Error> {
        let count = |text: &str| text.parse().ok().filter(|at_most| *at_most > 0);
        let parsed = match text.split_once(':') {
            None => (text == "fail").then_some(Self::FAIL),
            Some(("skip", at_most)) => count(at_most).map(Self::skip),
            Some(("substitute", at_most)) => count(at_most).map(Self::substitute),
            Some(_) => None,
        };
        parsed.ok_or_else(|| Error::InvalidSetting {
            field: "bad samples",
            value: format!("'{}'", text.chars().take(50).collect::<String>()),
            expected: "fail, skip:N or substitute:N, N being the most that may be bad",
        })
    }
}

impl From<BadSamples> for String {
    fn from(rule: BadSamples) -> Self {
        rule.to_string()
    }
}

impl TryFrom<String> for BadSamples {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_written_as_it_is_read() {
        for rule in [BadSamples::FAIL, BadSamples::skip(3), BadSamples::substitute(100)] {
            assert_eq!(rule.to_string().parse::<BadSamples>().unwrap(), rule);
        }
        for text in ["", "skip", "skip:", "skip:0", "skip:x", "fail:1", "Fail", "replace:3"] {
            let error = text.parse::<BadSamples>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("bad samples is '{text}', expected fail, skip:N")), "{error}");
        }
    }
}
