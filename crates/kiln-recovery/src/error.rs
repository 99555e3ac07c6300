//! The errors of this crate.

/// An error in the configuration or in a saved state. A failure of a device is a [`Failure`](crate::Failure) instead.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A size or an interval is 0.
    #[error("the {what} is 0, expected at least 1")]
    Zero {
        /// "batch size", "smallest micro-batch" or "success interval".
        what: &'static str,
    },
    /// A micro-batch size is outside the accepted range.
    #[error("the {what} is {size}, expected {least} to {batch}, the batch size")]
    Range {
        /// "smallest micro-batch" or "first micro-batch".
        what: &'static str,
        /// The given size.
        size: usize,
        /// The smallest accepted size.
        least: usize,
        /// The largest accepted size.
        batch: usize,
    },
    /// A saved state contradicts itself.
    #[error("the saved sizes of shape bucket {bucket} say that {fits} fits and {fails} fails, expected fits < fails")]
    Contradiction {
        /// The shape bucket.
        bucket: u64,
        /// The saved size that fits.
        fits: usize,
        /// The saved size that fails.
        fails: usize,
    },
    /// A probability is not in [0, 1].
    #[error("the probability of an injected failure is {0}, expected 0 to 1")]
    Chance(f64),
}
